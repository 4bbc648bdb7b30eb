package expression

import (
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
)

// estimateLimit bounds what an evaluation could cost with the [sizes] that are assumed, in CEL's own units.
// It is for loops inside loops inside loops, which are reported when they are compiled.
const estimateLimit = 1_000_000

// sizes are what an expression is assumed to meet when its cost is estimated.
type sizes struct{}

// EstimateSize is 1000 for what is surely a string, else 100.
func (sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	if element.Type().Kind() == types.StringKind {
		return &checker.SizeEstimate{Max: 1000}
	}
	return &checker.SizeEstimate{Max: 100}
}

// EstimateCallCost leaves it at CEL's own estimate.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

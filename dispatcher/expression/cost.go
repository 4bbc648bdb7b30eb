package expression

import (
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// CostLimit bounds an evaluation, in CEL's units. To count them takes time that grows with the square
// of their number (cel-go leaves values on its stack in loops), so there is no room for many more.
const CostLimit = 100_000

// estimateLimit bounds what an evaluation could cost with the [sizes] that are assumed. It is for loops
// inside loops inside loops, and above CostLimit because the estimate expects the worst of every value.
const estimateLimit = 1_000_000

// loops reports whether the expression goes over lists or maps. One that does not has no need of a
// limit at run time: it does no more than its length allows.
func loops(expression *cel.Ast) bool {
	root := ast.NavigateAST(expression.NativeRep())
	return len(ast.MatchDescendants(root, ast.KindMatcher(ast.ComprehensionKind))) > 0
}

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

// costs are what our functions cost at run time: a unit for each value that they may copy, and a tenth
// for each character, as CEL counts those of texts.
type costs struct{}

// CallCost returns nil for CEL's own functions.
func (costs) CallCost(_, overload string, args []ref.Val, _ ref.Val) *uint64 {
	switch overload {
	case overloadWithout, overloadMaskPaths, overloadWith:
		cost := values(args[0].Value())
		return &cost
	case overloadMask:
		s, _ := args[0].(types.String)
		cost := 1 + uint64(len(s))/10
		return &cost
	}
	return nil
}

// values counts what is in a decoded payload.
func values(v any) uint64 {
	n := uint64(1)
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			n += values(member)
		}
	case []any:
		for _, element := range v {
			n += values(element)
		}
	}
	return n
}

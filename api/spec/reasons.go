package spec

import (
	"strings"
	"unicode"
)

// DeadReason is how objects write why an event is dead: they have PermanentFailure for the permanent_failure of the contract,
// which databases, metrics and commands have.
func DeadReason(contract string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(contract, "_") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// ContractReason undoes [DeadReason].
func ContractReason(object string) string {
	var b strings.Builder
	for i, r := range object {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

package desired

import (
	"strings"
	"unicode"
)

// DeadReason is how the API writes why an event is dead: it has PermanentFailure for the permanent_failure of the contract,
// which databases, metrics and files have.
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
func ContractReason(api string) string {
	var b strings.Builder
	for i, r := range api {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

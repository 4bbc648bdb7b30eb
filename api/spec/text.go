package spec

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// YAML writes a value as YAML, with the names of its JSON, so that whoever reads it gets the same texts. A number of more
// than 17 digits loses the others. It fails as [json.Marshal] does.
func YAML(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(Escaped(text)) // which reads it as YAML
}

// odd are the characters that JSON has as they are, although terminals take some for commands, and YAML refuses most.
var odd = regexp.MustCompile(`[\x{7f}-\x{9f}\x{feff}\x{fffe}\x{ffff}]`)

// Escaped makes escapes of what terminals or YAML do not take of a JSON text, in whose strings alone it is.
func Escaped(text []byte) []byte {
	return odd.ReplaceAllFunc(text, func(char []byte) []byte {
		r, _ := utf8.DecodeRune(char)
		return fmt.Appendf(nil, `\u%04x`, r)
	})
}

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

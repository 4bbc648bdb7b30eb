package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// Duration is a time.Duration that is written as "30s" or "1m30s".
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:MaxLength=32
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String writes d without units that are zero: "5m", not "5m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalJSON writes d as a string. It never fails.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads a string such as "30s". It fails for any other text.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is not a duration; write it with its unit, as \"30s\", \"500ms\" or \"1m30s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration; write it with its unit, as \"30s\", \"500ms\" or \"1m30s\"", s)
	}
	*d = Duration(v)
	return nil
}

// Concurrency is a number of deliveries, or [Auto].
type Concurrency int

// Auto lets the dispatcher find the number.
const Auto Concurrency = math.MinInt

// String returns the number, or Auto.
func (c Concurrency) String() string {
	if c == Auto {
		return "Auto"
	}
	return fmt.Sprint(int(c))
}

// MarshalJSON writes a number, or the text Auto. It never fails.
func (c Concurrency) MarshalJSON() ([]byte, error) {
	if c == Auto {
		return []byte(`"Auto"`), nil
	}
	return json.Marshal(int(c))
}

// UnmarshalJSON reads what MarshalJSON writes. It fails for anything else.
func (c *Concurrency) UnmarshalJSON(b []byte) error {
	if string(b) == `"Auto"` {
		*c = Auto
		return nil
	}
	var n int // the rules of the object say whether it is within the bounds
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("concurrency is %s; set it to a number from 1 to 1000, or to Auto", b)
	}
	*c = Concurrency(n)
	return nil
}

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

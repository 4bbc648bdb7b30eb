package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
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

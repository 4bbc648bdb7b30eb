package config

import (
	"encoding/json"
	"fmt"
)

// Concurrency is a number of deliveries, or [Auto].
type Concurrency int

// Auto lets the dispatcher find the number.
const Auto Concurrency = -1

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
	var n int
	if err := json.Unmarshal(b, &n); err != nil || n < 0 {
		return fmt.Errorf("concurrency is %s; set it to a number from 1 to 1000, or to Auto", b)
	}
	*c = Concurrency(n)
	return nil
}

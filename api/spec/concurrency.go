package spec

import (
	"encoding/json"
	"fmt"
	"math"
)

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
	var n int // Validate says whether it is within the bounds, with all else that is wrong
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("concurrency is %s; set it to a number from 1 to 1000, or to Auto", b)
	}
	*c = Concurrency(n)
	return nil
}

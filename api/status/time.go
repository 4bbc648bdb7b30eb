package status

import "time"

// Time is a time in seconds since 1970, as an object of Kubernetes holds it. Its JSON is a text of RFC 3339 in UTC. 0 means none.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:Format=date-time
type Time int64

// At is the second of a time, 0 for the zero time.
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.Unix())
}

// IsZero reports whether it is 0.
func (t Time) IsZero() bool { return t == 0 }

// Time is the time in UTC, the zero time for 0.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(int64(t), 0).UTC()
}

// MarshalJSON writes the text. It fails for a year above 9999.
func (t Time) MarshalJSON() ([]byte, error) { return t.Time().MarshalJSON() }

// UnmarshalJSON reads any text of RFC 3339, and fails for others.
func (t *Time) UnmarshalJSON(text []byte) error {
	var exact time.Time
	err := exact.UnmarshalJSON(text)
	*t = At(exact)
	return err
}

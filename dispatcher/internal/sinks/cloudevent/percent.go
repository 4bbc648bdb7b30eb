package cloudevent

// PercentEncode encodes an attribute's value for a header of the CloudEvents bindings of HTTP and NATS
// (section 3.1.3.2 of both).
func PercentEncode(s string) string {
	must := func(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '%' }
	n := 0
	for i := range len(s) {
		if must(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; must(c) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

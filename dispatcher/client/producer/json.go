package producer

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// What jsonb can hold is a little less than what JSON allows. PostgreSQL's own bounds are higher
// and depend on its settings; these are far above what events have.
const (
	maxDepth    = 1000
	maxDigits   = 1000
	maxExponent = 400
)

// checkJSON reports, as [ErrInvalid], why PostgreSQL's jsonb would refuse the text.
func checkJSON(text []byte) error {
	var syntax *json.SyntaxError
	if err := json.Unmarshal(text, new(json.RawMessage)); errors.As(err, &syntax) {
		return invalid("Payload", "is not JSON, at byte %d; pass JSON, or a value to be written as JSON", syntax.Offset)
	} else if err != nil {
		return invalid("Payload", "is not JSON; pass JSON, or a value to be written as JSON")
	}
	if !utf8.Valid(text) {
		return invalid("Payload", "has bytes that are not UTF-8; encode the text as UTF-8, and binary data as base64")
	}
	depth := 0
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			n, err := checkString(text[i:])
			if err != nil {
				return err
			}
			i += n
		case c == '-' || '0' <= c && c <= '9':
			n, err := checkNumber(text[i:])
			if err != nil {
				return err
			}
			i += n
		default:
			switch c {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if depth > maxDepth {
				return invalid("Payload", "is nested deeper than %d levels; make it flatter", maxDepth)
			}
			i++
		}
	}
	return nil
}

// checkString looks at the valid JSON string that text starts with, and returns its length.
func checkString(text []byte) (int, error) {
	for i := 1; ; i++ {
		switch text[i] {
		case '"':
			return i + 1, nil
		case '\\':
			i++
			if text[i] != 'u' {
				continue
			}
			switch r := hex4(text[i+1:]); {
			case r == 0:
				return 0, invalid("Payload", "has the character \\u0000, which jsonb cannot hold; remove it")
			case 0xdc00 <= r && r <= 0xdfff, 0xd800 <= r && r <= 0xdbff && !lowSurrogate(text[i+5:]):
				return 0, invalid("Payload", "has half of a surrogate pair (\\u%04x), which jsonb cannot hold; send both halves, or the character itself", r)
			case 0xd800 <= r && r <= 0xdbff:
				i += 6
			}
			i += 4
		}
	}
}

func lowSurrogate(text []byte) bool {
	if !bytes.HasPrefix(text, []byte(`\u`)) {
		return false
	}
	r := hex4(text[2:])
	return 0xdc00 <= r && r <= 0xdfff
}

// hex4 reads the four hex digits of an escape, which are known to be there.
func hex4(text []byte) uint64 {
	r, _ := strconv.ParseUint(string(text[:4]), 16, 16)
	return r
}

// checkNumber looks at the valid JSON number that text starts with, and returns its length.
func checkNumber(text []byte) (int, error) {
	n := len(text) - len(bytes.TrimLeft(text, "+-.0123456789eE"))
	_, exponent, _ := strings.Cut(strings.ToLower(string(text[:n])), "e")
	if exponent == "" {
		exponent = "0"
	}
	x, err := strconv.Atoi(exponent)
	if n > maxDigits || err != nil || x > maxExponent || x < -maxExponent {
		return 0, invalid("Payload", "has a number with more than %d digits or an exponent beyond %d; send it as a string", maxDigits, maxExponent)
	}
	return n, nil
}

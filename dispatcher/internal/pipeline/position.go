package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// lineColumn is where a byte of a text is.
func lineColumn(text []byte, offset int64) string {
	before := text[:min(max(offset, 0), int64(len(text)))]
	return fmt.Sprintf("line %d, column %d", 1+bytes.Count(before, []byte("\n")), len(before)-bytes.LastIndexByte(before, '\n'))
}

// at is the line and column of the value that the tokens of a JSON pointer lead to, or of the last one on the
// way that is there.
func at(text []byte, tokens []string) string {
	decoder := json.NewDecoder(bytes.NewReader(text))
	found := int64(0)
	for {
		found = value(text, decoder.InputOffset())
		opening, err := decoder.Token()
		if err != nil || len(tokens) == 0 || !enter(decoder, opening, tokens[0]) {
			return lineColumn(text, found)
		}
		tokens = tokens[1:]
	}
}

// value is where the value after an offset begins.
func value(text []byte, offset int64) int64 {
	for offset < int64(len(text)) && bytes.IndexByte([]byte(" \t\r\n:,"), text[offset]) >= 0 {
		offset++
	}
	return offset
}

// enter reads up to the member or element that a token names, after the opening token.
func enter(decoder *json.Decoder, opening json.Token, name string) bool {
	for i := 0; decoder.More(); i++ {
		is := opening == json.Delim('[') && name == strconv.Itoa(i)
		if opening == json.Delim('{') {
			key, err := decoder.Token()
			if err != nil {
				return false
			}
			is = key == name
		}
		if is {
			return true
		}
		var skipped json.RawMessage
		if decoder.Decode(&skipped) != nil {
			return false
		}
	}
	return false
}

// misplaced says where a text is not JSON.
func misplaced(text []byte, err error) string {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return lineColumn(text, syntax.Offset-1) + ": "
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return lineColumn(text, int64(len(text))) + ": "
	}
	return ""
}

// invalid says where and why a text is not a JSON Schema: of several causes the first.
func invalid(text []byte, err error) string {
	var meta *jsonschema.SchemaValidationError
	var cause *jsonschema.ValidationError
	if !errors.As(err, &meta) || !errors.As(meta.Err, &cause) {
		return strings.Join(strings.Fields(err.Error()), " ")
	}
	for len(cause.Causes) > 0 {
		cause = cause.Causes[0]
	}
	_, pointer, _ := strings.Cut(meta.URL, "#/")
	var place []string
	if pointer != "" {
		for _, token := range strings.Split(pointer, "/") {
			place = append(place, strings.NewReplacer("~1", "/", "~0", "~").Replace(token))
		}
	}
	place = append(place, cause.InstanceLocation...)
	return fmt.Sprintf("%s: at /%s: %s", at(text, place), strings.Join(place, "/"), cause.ErrorKind.LocalizedString(message.NewPrinter(language.English)))
}

package problem

import (
	"strings"
	"unicode"
)

// MaxMessage bounds the text of a condition, in bytes: it becomes the note of an event, which must
// be shorter than 1,024.
const MaxMessage = 1000

// Sentence returns the text with a capital at its start (except for a path or a URL) and a full stop at its end, clipped
// to MaxMessage.
func Sentence(text string) string {
	text = Clip(strings.TrimSpace(text), MaxMessage)
	if text == "" {
		return ""
	}
	if !strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "…") {
		text += "."
	}
	if word, _, _ := strings.Cut(text, " "); strings.Contains(word, "://") || strings.HasPrefix(word, "spec.") {
		return text // a URL and the path of a field are written as they are
	}
	runes := []rune(text)
	runes[0] = unicode.ToUpper(runes[0])
	return string(runes)
}

// Clip shortens the text to so many bytes and an ellipsis.
func Clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

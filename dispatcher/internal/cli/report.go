package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// reportWriter returns the function that writes a report as table, json or yaml. It fails for another output.
func reportWriter[Report any](form string, table func(io.Writer, Report) error) (func(io.Writer, Report) error, error) {
	write, ok := map[string]func(io.Writer, Report) error{
		"table": table,
		"json": func(w io.Writer, r Report) error {
			e := json.NewEncoder(w)
			e.SetEscapeHTML(false)
			e.SetIndent("", "  ")
			return e.Encode(r)
		},
		"yaml": func(w io.Writer, r Report) error {
			text, err := yaml.Marshal(r)
			if err == nil {
				_, err = w.Write(text)
			}
			return err
		},
	}[form]
	if !ok {
		return nil, fmt.Errorf("--output is %q; set it to table, json or yaml", form)
	}
	return func(w io.Writer, r Report) error {
		if err := write(w, r); err != nil {
			return fmt.Errorf("write the report: %w; check what reads it", err)
		}
		return nil
	}, nil
}

// oneLine replaces line breaks of a topic or a route, which would break the table.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '\uFFFD'
		}
		return r
	}, text)
}

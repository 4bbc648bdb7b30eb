package deadcmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// Output is the flag --output of a command.
type Output struct {
	format, choices string
	formats         []string
}

// AddOutput adds the flag. The first of the formats is the default: of table, json and yaml.
func AddOutput(cmd *cobra.Command, formats ...string) *Output {
	last := len(formats) - 1
	o := &Output{formats: formats, choices: strings.Join(formats[:last], ", ") + " or " + formats[last]}
	cmd.Flags().StringVarP(&o.format, "output", "o", formats[0], o.choices)
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is there
	}
	return o
}

// Validate fails for a format that the command has not.
func (o *Output) Validate() error {
	switch {
	case slices.Contains(o.formats, o.format):
		return nil
	case o.format == "table":
		return fmt.Errorf("--output is \"table\", and this command has none; choose %s, or see a page in a browser: `kubectl outbox ui`", o.choices)
	}
	return fmt.Errorf("--output is %q; choose %s", o.format, o.choices)
}

// Write writes a result to out, and calls table where that is the format. It fails when out or table does.
func (o *Output) Write(out io.Writer, result any, table func() error) (err error) {
	var text []byte
	switch o.format {
	case "table":
		return table()
	case "yaml":
		text, err = spec.YAML(result)
	default:
		text, err = JSON(result)
	}
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// JSON writes a result as indented JSON, in which characters that no terminal should get are escapes. It fails as
// [json.Marshal] does.
func JSON(result any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(result)
	return spec.Escaped(text.Bytes()), err
}

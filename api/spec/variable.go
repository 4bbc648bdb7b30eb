package spec

import (
	"errors"
	"os"
	"strings"
)

// Variable begins the path of what is in an environment variable, not in a file.
const Variable = "env:"

// ReadFile returns what the file of a path has, or the environment variable whose name follows [Variable]. It fails as
// [os.ReadFile] does, and for a variable that is not set.
func ReadFile(path string) ([]byte, error) {
	name, is := strings.CutPrefix(path, Variable)
	if !is {
		return os.ReadFile(path)
	}
	text, set := os.LookupEnv(name)
	if !set {
		return nil, errors.New("the environment variable " + name + " is not set")
	}
	return []byte(text), nil
}

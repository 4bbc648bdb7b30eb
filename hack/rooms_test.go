package hack

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

const (
	roomsFile = "rooms.txt"
	someRooms = 10 // with fewer, the file has only the trees, and the whole is checked alone
)

// room has lines of product and of tests.
type room struct {
	name           string
	product, tests int
	old            bool
}

func (r room) String() string {
	text := fmt.Sprintf("%-40s %5d %5d", r.name, r.product, r.tests)
	if r.old {
		text += " old"
	}
	return text
}

func (r room) tooManyTests() bool { return !r.old && 10*r.tests > 13*r.product }

// readRooms reads the file. Its head is everything up to the line of the whole.
func readRooms(t *testing.T, text string) (head string, all [3]int, rooms map[string]room) {
	t.Helper()
	rooms = map[string]room{}
	for line := range strings.Lines(text) {
		var r room
		var mark string
		switch n, _ := fmt.Sscan(line, &r.name, &r.product, &r.tests, &mark); {
		case strings.HasPrefix(line, "#"):
			head += line
		case strings.HasPrefix(line, "all "):
			head += line
			if _, err := fmt.Sscanf(line, "all %d %d %d", &all[0], &all[1], &all[2]); err != nil {
				t.Fatalf("%s: %q: %v", roomsFile, line, err)
			}
		case n < 3:
			t.Fatalf("%s: %q is not NAME PRODUCT TESTS", roomsFile, line)
		default:
			r.old = mark == "old"
			rooms[r.name] = r
		}
	}
	return head, all, rooms
}

// countRooms counts the files of the repository, by the rooms that are listed, or each folder by itself.
func countRooms(t *testing.T, listed map[string]room) (all [3]int, rooms map[string]room) {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "..").Output()
	if err != nil {
		t.Skip("this is not a repository of git, which knows the files")
	}
	rooms = map[string]room{}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it was removed
		}
		name = path.Join("hack", name)
		if all[2]++; !strings.HasSuffix(name, ".go") {
			continue
		}
		lines, test := bytes.Count(text, []byte("\n")), strings.HasSuffix(name, "_test.go")
		all[0] += lines
		if test && !strings.HasPrefix(name, "hack/") {
			all[1] += lines
		}
		if first, _, _ := bytes.Cut(text, []byte("\n")); bytes.Contains(first, []byte("Code generated")) {
			continue
		}
		r := rooms[roomOf(path.Dir(name), listed)]
		if r.name = roomOf(path.Dir(name), listed); test {
			r.tests += lines
		} else {
			r.product += lines
		}
		rooms[r.name] = r
	}
	return all, rooms
}

// roomOf returns the room that is listed for a folder, or the folder.
func roomOf(folder string, listed map[string]room) string {
	for above := folder; above != "."; above = path.Dir(above) {
		if _, ok := listed[above+"/..."]; ok {
			return above + "/..."
		}
	}
	return folder
}

// TestRoomsKeepToTheirLines holds each room, and the whole, to its lines.
func TestRoomsKeepToTheirLines(t *testing.T) {
	text, err := os.ReadFile(roomsFile)
	need.OK(t, err)
	head, most, listed := readRooms(t, string(text))
	all, rooms := countRooms(t, listed)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		lines := []string{}
		for _, r := range slices.SortedFunc(maps.Values(rooms), func(a, b room) int { return cmp.Compare(a.name, b.name) }) {
			r.old = r.tooManyTests() && (len(listed) < someRooms || listed[r.name].old)
			lines = append(lines, r.String()+"\n")
		}
		need.OK(t, os.WriteFile(roomsFile, []byte(head+strings.Join(lines, "")), 0o600))
		return
	}
	for i, what := range []string{"lines of Go", "lines of tests of the product", "files"} {
		if all[i] > most[i] {
			t.Errorf("the whole has %d %s, and may have %d: remove as many", all[i], what, most[i])
		}
	}
	if len(listed) < someRooms {
		return
	}
	for name, r := range rooms {
		may, known := listed[name]
		switch r.old = may.old; {
		case !known:
			t.Errorf("%s is a new room of %d lines of product and %d of tests: add the line %q to hack/rooms.txt, and say in the commit what pays for it", name, r.product, r.tests, r)
		case r.product > may.product || r.tests > may.tests:
			t.Errorf("%s has %d lines of product and %d of tests, and may have %d and %d: remove some, or raise its line in hack/rooms.txt in this commit and say there what pays for it", name, r.product, r.tests, may.product, may.tests)
		}
		if r.tooManyTests() {
			t.Errorf("%s has %d lines of tests, more than 1.3 times its %d of product: share helpers and tables, or test less twice", name, r.tests, r.product)
		}
	}
	for name := range listed {
		if _, ok := rooms[name]; !ok {
			t.Errorf("%s is in hack/rooms.txt, and has no Go file: remove its line", name)
		}
	}
}

package hack

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// files returns the files of the repository with one of the endings, by path from its root, and their
// text. Folders of tools (.git, bin, node_modules) are left out.
func files(t *testing.T, endings ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "node_modules"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(path, e) }) {
			return nil
		}
		text, err := os.ReadFile(path)
		all[filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))] = string(text)
		return err
	})
	need.OK(t, err)
	return all
}

// A call of a method by its name, as templates have them, makes the linker keep every method of every type: a third of a
// program. hack/release/size.sh prints what each sink adds.
func TestProgramsStaySmall(t *testing.T) {
	dir := t.TempDir()
	if text, err := exec.Command("./build.sh", dir+"/").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, text)
	}
	for name, most := range map[string]int64{"dispatcher": 48e6, "manager": 45e6} {
		info, err := os.Stat(filepath.Join(dir, name))
		need.OK(t, err)
		if t.Logf("%s has %.1f MB", name, float64(info.Size())/1e6); info.Size() > most {
			t.Errorf("%s has %d bytes, want at most %d", name, info.Size(), most)
		}
	}
}

// An engine copies into the image what the build wrote, and nothing of its own base.
func TestTheDockerfileCopiesTheBuildAlone(t *testing.T) {
	build, image, _ := strings.Cut(files(t, "Dockerfile")["Dockerfile"], "\nFROM scratch\n")
	if want := "COPY --from=build /out/ /\nUSER 65532:65532\nENTRYPOINT [\"/manager\"]\n"; image != want {
		t.Errorf("the image of the Dockerfile is\n%s\nwant\n%s", image, want)
	}
	pinned := regexp.MustCompile(`(?m)^toolchain go(.*)$`).FindStringSubmatch(files(t, "go.mod")["go.mod"])
	if pinned == nil || !strings.Contains(build, "golang:"+pinned[1]+" AS build\n") {
		t.Errorf("the Dockerfile does not build by the toolchain of go.mod, %q", pinned)
	}
}

// A tag of an action can be moved to other code; a commit cannot.
func TestActionsArePinnedByCommit(t *testing.T) {
	pinned, all := regexp.MustCompile(`uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+\n`), 0
	for name, text := range files(t, ".yml") {
		if all += strings.Count(text, " uses: "); strings.Count(text, " uses: ") != len(pinned.FindAllString(text, -1)) {
			t.Errorf("%s has an action that is not pinned: write uses: OWNER/NAME@COMMIT # v1.2.3", name)
		}
	}
	if all < 4 {
		t.Fatalf("%d actions were found; is that so?", all)
	}
}

// testScript copies test.sh to a directory without a repository of git, as an archive of the sources has none, and runs it
// with a go that does what the script says.
func testScript(t *testing.T, fakeGo string, parts ...string) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("git is used on Linux alone")
	}
	dir := t.TempDir()
	all := map[string]string{"hack/pins/kube/build.sh": "#!/bin/sh\n", "hack/pins/tool.sh": "#!/bin/sh\n", "bin/go": "#!/bin/sh\n" + fakeGo}
	for _, name := range []string{"test.sh", "servers/postgres/builds.sha256"} {
		text, err := os.ReadFile(name)
		need.OK(t, err)
		all["hack/"+name] = string(text)
	}
	for name, text := range all {
		name = filepath.Join(dir, name)
		need.OK(t, os.MkdirAll(filepath.Dir(name), 0o700))
		need.OK(t, os.WriteFile(name, []byte(text), 0o700))
	}
	cmd := exec.Command("bash", append([]string{filepath.Join(dir, "hack/test.sh")}, parts...)...)
	cmd.Env = append(os.Environ(), "GIT_DIR="+filepath.Join(dir, "none"), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "OUTBOX_TEST_PG=16")
	text, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("it succeeds:\n%s", text)
	}
	return string(text)
}

func TestTestsRunWithoutGit(t *testing.T) {
	if text := testScript(t, "", "no-such-part"); !strings.HasPrefix(text, "usage: ") {
		t.Errorf("without git it ends with:\n%s", text)
	}
}

// Each part runs, and the end has the commands for what failed in all of them.
func TestEachFailureHasItsCommand(t *testing.T) {
	const fake = `case "$*" in
list*) echo github.com/outbox-operator/outbox-operator/$2 ;;
*TestLong*) printf -- '--- FAIL: TestLongWait (0.1s)\n    --- FAIL: TestLongWait/one (0.1s)\n--- FAIL: TestLongRun (0.1s)\nFAIL\nFAIL\tgithub.com/outbox-operator/outbox-operator/dispatcher/engine\t1s\nFAIL\n'; exit 1 ;;
*api/...*) printf '  [FAIL] a pod [It] stops (soon) [stop, main]\n--- FAIL: TestOnTheAPIServer (0.1s)\nFAIL\tgithub.com/outbox-operator/outbox-operator/controllers/pods\t1s\n'; exit 1 ;;
*gitops*) printf 'FAIL\tgithub.com/outbox-operator/outbox-operator/hack/gitops [build failed]\n'; exit 1 ;;
env*) echo 0 ;;
esac
`
	text := testScript(t, fake, "data", "control", "cluster")
	_, text, _ = strings.Cut(text, "== Failed")
	for _, want := range []string{
		"    OUTBOX_TEST_PG=16 go test ./dispatcher/engine -run '^(TestLongWait|TestLongRun)$'\n",
		"    OUTBOX_TEST_PG=16 go test -short ./controllers/pods -run '^(TestOnTheAPIServer)$' -ginkgo.focus='a pod stops .soon.'\n",
		"    OUTBOX_TEST_PG=16 go -C hack/gitops test github.com/outbox-operator/outbox-operator/hack/gitops\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the end does not have %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "go test "); n != 2 {
		t.Errorf("%d commands, want those of what failed alone:\n%s", n, text)
	}
}

var argument = regexp.MustCompile(`flag\.[A-Z]\w+\((?:&?[\w.]+, )?"([a-z-]+)"`)

func TestArgumentsOfTheManagerHaveTheirLines(t *testing.T) {
	page := files(t, "config/README.md")["config/README.md"]
	all := argument.FindAllStringSubmatch(files(t, "manager/main.go")["controllers/cmd/manager/main.go"], -1)
	if len(all) < 5 {
		t.Fatalf("main.go has %d arguments; is that so?", len(all))
	}
	for _, a := range all {
		if !strings.Contains(page, "\n| `--"+a[1]+"` |") {
			t.Errorf("config/README.md has no line for --%s in the table of arguments", a[1])
		}
	}
}

var (
	label  = regexp.MustCompile(`\bLabel\(("[^)]*")\)`)
	suites = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\| ([a-z, ]+)(?::.*)? \\|$")
)

func TestLabelsOfSpecsAreListed(t *testing.T) {
	want := map[string][]string{}
	for name, text := range files(t, "_test.go") {
		for _, found := range label.FindAllStringSubmatch(text, -1) {
			for _, one := range strings.Split(found[1], ", ") {
				want[path.Dir(name)] = append(want[path.Dir(name)], strings.Trim(one, `"`))
			}
		}
	}
	listed := map[string][]string{}
	for _, row := range suites.FindAllStringSubmatch(files(t, "hack/README.md")["hack/README.md"], -1) {
		listed[row[1]] = strings.Split(row[2], ", ")
		if want[row[1]] == nil {
			t.Errorf("hack/README.md lists labels of %s, which has none", row[1])
		}
	}
	for suite, labels := range want {
		slices.Sort(labels)
		slices.Sort(listed[suite])
		if labels = slices.Compact(labels); !slices.Equal(labels, listed[suite]) {
			t.Errorf("hack/README.md lists the labels of %s as %q; they are %q", suite, listed[suite], labels)
		}
	}
}

// What waits for something waits need.Wait, not as long as seemed enough on the machine where it was written.
func TestWaitsHaveNoLimitOfTheirOwn(t *testing.T) {
	own := regexp.MustCompile(`\.WithTimeout\((\d+ ?\* ?)?time\.|SetDefaultEventuallyTimeout\(time|Eventually\([^,]+, "[^"]*", (\d+ ?\* ?)?time\.`)
	for name, text := range files(t, "_test.go") {
		for _, limit := range own.FindAllString(text, -1) {
			t.Errorf("%s has %q: leave out the limit; need.Wait is the default", name, limit)
		}
	}
}

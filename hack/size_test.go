package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A call of a method by its name, as templates have them, makes the linker keep every method of every type: a third of a
// program. hack/image/size.sh prints what each sink adds.
func TestProgramsStaySmall(t *testing.T) {
	dir := t.TempDir()
	if text, err := exec.Command("./build.sh", dir+"/").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, text)
	}
	for name, most := range map[string]int64{"dispatcher": 48e6, "manager": 45e6} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if t.Logf("%s has %.1f MB", name, float64(info.Size())/1e6); info.Size() > most {
			t.Errorf("%s has %d bytes, want at most %d", name, info.Size(), most)
		}
	}
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// limit is the most that the image may have, compressed: both programs with every sink in them.
const limit = 35_000_000

func TestSizeStaysBelowTheLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the image")
	}
	out := filepath.Join(t.TempDir(), "image.tar")
	if text, err := exec.Command("./build.sh", "outbox-operator:size", out).CombinedOutput(); err != nil {
		t.Fatalf("build the image: %v: %s", err, text)
	}
	info, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the image has %.1f MB, compressed; at most %.1f are allowed. hack/image/size.sh prints what each sink adds", float64(info.Size())/1e6, limit/1e6)
	if info.Size() > limit {
		t.Errorf("the image has %d bytes, want at most %d", info.Size(), limit)
	}
}

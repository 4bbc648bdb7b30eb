package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// ErrMissing says that this machine has no Chromium and cannot get one.
var ErrMissing = errors.New("no Chromium on this machine; install the package chromium")

// Chromium is a tab of a real browser without a window, as a person at a mouse and a keyboard uses it. It is driven through
// Chromium's pipe of commands, which takes no library. A step that fails ends the test.
type Chromium struct {
	testing.TB
	// Clicks counts those of [Chromium.Click].
	Clicks int

	in      *os.File
	session string
	last    int

	mu      sync.Mutex
	waiting map[int]chan message
	errs    []string // what the console of the browser has of errors
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Start starts the browser of Debian's package, or of another on the PATH, until the end of the test. Where there is none the
// test is skipped, and in CI it fails.
func Start(t testing.TB) *Chromium {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), need.Install)
	defer cancel()
	binary, err := exec.LookPath("google-chrome")
	if err != nil {
		binary, err = daemon.Need(ctx, ErrMissing, "chromium", "chromium")
	}
	need.Server(t, err, ErrMissing)
	c := &Chromium{TB: t, waiting: map[int]chan message{}}
	theirs, in, err := os.Pipe()
	need.OK(t, err)
	out, theirsOut, err := os.Pipe()
	need.OK(t, err)
	c.in = in
	dir, err := os.MkdirTemp("", "chromium-")
	need.OK(t, err)
	cmd := exec.Command(binary, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--no-first-run", "--user-data-dir="+dir)
	cmd.ExtraFiles = []*os.File{theirs, theirsOut}
	process, err := daemon.Start(cmd, nil, syscall.SIGKILL)
	need.OK(t, errors.Join(err, theirs.Close(), theirsOut.Close()))
	done := make(chan struct{})
	go func() { defer close(done); c.read(out) }()
	t.Cleanup(func() {
		process.End(syscall.SIGTERM)
		_ = syscall.Kill(-process.Pid(), syscall.SIGKILL) // its children, which may write until they are gone
		for deadline := time.Now().Add(need.Wait); os.RemoveAll(dir) != nil && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
		}
		_, _ = in.Close(), out.Close()
		<-done
	})
	var tab struct{ TargetID, SessionID string }
	c.do("Target.createTarget", &tab, map[string]any{"url": "about:blank"})
	c.do("Target.attachToTarget", &tab, map[string]any{"targetId": tab.TargetID, "flatten": true})
	c.session = tab.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		c.do(domain+".enable", nil, nil)
	}
	return c
}

// read hands out responses, and keeps what the browser says of errors, until the browser ends.
func (c *Chromium) read(out *os.File) {
	for lines := bufio.NewReader(out); ; {
		text, err := lines.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		c.mu.Lock()
		if m.ID != 0 {
			c.waiting[m.ID] <- m
			delete(c.waiting, m.ID)
		} else if m.Method == "Log.entryAdded" || m.Method == "Runtime.exceptionThrown" || m.Method == "Runtime.consoleAPICalled" {
			c.errs = append(c.errs, string(m.Params))
		}
		c.mu.Unlock()
	}
}

// do sends a command and reads its result.
func (c *Chromium) do(method string, into, params any) {
	c.Helper()
	need.OK(c, c.try(method, into, params))
}

func (c *Chromium) try(method string, into, params any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	c.last++
	m := message{ID: c.last, SessionID: c.session, Method: method, Params: raw}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	response := make(chan message, 1)
	c.mu.Lock()
	c.waiting[m.ID] = response
	c.mu.Unlock()
	if _, err := c.in.Write(append(text, 0)); err != nil {
		return err
	}
	select {
	case m = <-response:
	case <-time.After(need.Wait):
		return fmt.Errorf("%s: no response within %v", method, need.Wait)
	}
	if m.Error != nil {
		return fmt.Errorf("%s: %s", method, m.Error.Message)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(m.Result, into)
}

// Value is the value of an expression in the page.
func Value[T any](c *Chromium, expression string) (value T) {
	c.Helper()
	err := evaluate(c, expression, &value)
	need.Must(c, err == nil, "%s: %v", expression, err)
	return value
}

func evaluate(c *Chromium, expression string, into any) error {
	var result struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	if err := c.try("Runtime.evaluate", &result, map[string]any{"expression": expression, "returnByValue": true}); err != nil {
		return err
	}
	if e := result.ExceptionDetails; e != nil {
		return errors.New(e.Exception.Description)
	}
	return json.Unmarshal(result.Result.Value, into)
}

// Until waits until an expression in the page is true, while the page may be loaded again.
func (c *Chromium) Until(expression string) {
	c.Helper()
	for deadline := time.Now().Add(need.Wait); ; time.Sleep(20 * time.Millisecond) {
		var holds bool
		if evaluate(c, "document.readyState == 'complete' && Boolean("+expression+")", &holds) == nil && holds {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("not within %v: %s, in the page\n%s", need.Wait, expression, Value[string](c, "document.documentElement.outerHTML"))
		}
	}
}

// Open opens an address, and waits for a page of the console.
func (c *Chromium) Open(address string) {
	c.Helper()
	c.do("Page.navigate", nil, map[string]any{"url": address})
	c.Until(`document.querySelector("main h1")`)
}

// Click clicks once in the middle of the first element that a selector finds, and waits for the page that it leads to.
func (c *Chromium) Click(selector string) {
	c.Helper()
	c.Focus(selector)
	c.Until(`!window.left && document.querySelector("main h1")`)
}

// Focus clicks likewise on what leads nowhere.
func (c *Chromium) Focus(selector string) {
	c.Helper()
	quoted := fmt.Sprintf("document.querySelector(%q)", selector)
	c.Until(quoted)
	at := Value[[2]float64](c, `(e => { e.scrollIntoView({block: "center"}); window.left = true; const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2] })(`+quoted+`)`)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		c.do("Input.dispatchMouseEvent", nil, map[string]any{"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1})
	}
	c.Clicks++
}

// Write writes a text where the keyboard is.
func (c *Chromium) Write(text string) {
	c.Helper()
	c.do("Input.insertText", nil, map[string]any{"text": text})
}

// Press presses a key, by its name and its number.
func (c *Chromium) Press(key string, number int) {
	c.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		c.do("Input.dispatchKeyEvent", nil, map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": number})
	}
}

// Look makes the window so wide, and chooses the user's colours: light or dark.
func (c *Chromium) Look(width int, colours string) {
	c.Helper()
	c.do("Emulation.setDeviceMetricsOverride", nil, map[string]any{"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false})
	c.do("Emulation.setEmulatedMedia", nil, map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": colours}}})
}

// Picture is the page as a PNG of at most 1.4 megapixels, from its top, in 256 colours.
func (c *Chromium) Picture() []byte {
	c.Helper()
	var shot struct{ Data []byte }
	size := Value[[2]int](c, "[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
	c.do("Page.captureScreenshot", &shot, map[string]any{"captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": 0, "width": size[0], "height": min(size[1], 1_400_000/size[0]), "scale": 1}})
	full, err := png.Decode(bytes.NewReader(shot.Data))
	need.OK(c, err)
	out := image.NewPaletted(full.Bounds(), most(full))
	nearest := map[color.Color]uint8{}
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			at := full.At(x, y)
			index, known := nearest[at]
			if !known {
				index = uint8(out.Palette.Index(at))
				nearest[at] = index
			}
			out.SetColorIndex(x, y, index)
		}
	}
	var small bytes.Buffer
	need.OK(c, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, out))
	return small.Bytes()
}

// most are the 256 colours that an image has most of.
func most(of image.Image) color.Palette {
	counts := map[color.Color]int{}
	for y := range of.Bounds().Dy() {
		for x := range of.Bounds().Dx() {
			counts[of.At(x, y)]++
		}
	}
	all := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	return all[:min(len(all), 256)]
}

// Errors are those that the browser has said since the last call.
func (c *Chromium) Errors() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	errs := c.errs
	c.errs = nil
	return errs
}

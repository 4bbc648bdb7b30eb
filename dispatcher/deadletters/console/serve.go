package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

//go:embed style.css
var style []byte

// policy lets a page load its style and nothing else, and run no script.
const policy = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// maxForm is the most bytes of a form.
const maxForm = 64 << 10

// entry leads to a page by a navigation of the console's own: a browser keeps the cookie from one that another page began.
const entry markup = `<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=%s"><title>Outbox</title><a href="%s">Continue</a></html>`

// Serve serves the console on a port of 127.0.0.1, 0 for a free one, until ctx ends, and writes the link that opens it. It fails
// when it cannot listen.
func Serve(ctx context.Context, out io.Writer, c *Console, path string, port int) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("listen on this machine: %w; choose another --port", err)
	}
	handler, token := c.Guarded()
	path = c.below + path
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	fmt.Fprintf(out, "Open http://%s%s?token=%s\nThe link works once, on this machine. Ctrl-C ends the console.\n", listener.Addr(), path, token)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the console: %w", err)
	}
	return nil
}

// Guarded returns the pages behind what keeps others out, and the token that opens them once. A request must be for a loopback
// address by its Host, which no other name in a browser can claim, and have the cookie that the token was exchanged for; a form
// must come from a page of the same origin. A browser sends a cookie to every port of a host: the pages are below a path that
// others do not know, and the cookie is for that path alone.
func (c *Console) Guarded() (h http.Handler, token string) {
	token, session := rand.Text(), rand.Text()
	c.below = "/" + rand.Text()
	const cookie = "outbox"
	var used atomic.Bool
	pages := http.NewCrossOriginProtection().Handler(http.StripPrefix(c.below, c.Handler()))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store"} {
			w.Header().Set(name, value)
		}
		if !loopback(r.Host) {
			http.Error(w, "The console is for this machine: open it by 127.0.0.1 or localhost.", http.StatusMisdirectedRequest)
			return
		}
		given := r.URL.Query().Get("token")
		known, err := r.Cookie(cookie)
		switch {
		case err == nil && same(known.Value, session) && strings.HasPrefix(r.URL.Path, c.below+"/"):
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			pages.ServeHTTP(w, r)
		case given != "" && r.Method == http.MethodGet && same(given, token) && used.CompareAndSwap(false, true):
			http.SetCookie(w, &http.Cookie{Name: cookie, Value: session, Path: c.below + "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			path := exact(r.URL.EscapedPath())
			_, _ = io.WriteString(w, string(write(entry, path, path)))
		case given != "":
			http.Error(w, "This link was used, or is of another console. Start the command again for a new one.", http.StatusForbidden)
		default:
			http.Error(w, "Open the link that the command printed.", http.StatusForbidden)
		}
	}), token
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

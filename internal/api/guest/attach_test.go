package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/testkit"
)

// client is one end of a terminal.
type client struct {
	t      *testing.T
	send   func([]byte) error
	next   func() (attachframe.Type, []byte, error)
	close  func()
	screen bytes.Buffer
	header http.Header // of the answer
}

// dialRaw speaks fuse-attach/1 as a public client does.
func dialRaw(t *testing.T, w *world, query string) *client {
	t.Helper()
	u, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /v1/environments/fuse-t/attach?%s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: Fuse-Attach/1\r\n\r\n", query, u.Host)
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil) //nolint:bodyclose // it is the connection
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Upgrade") != "fuse-attach/1" || res.Header.Get("Connection") != "Upgrade" {
		t.Fatalf("answered %d %v", res.StatusCode, res.Header)
	}
	if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, header: res.Header, next: attachframe.NewReader(r).Next, close: func() { _ = conn.Close() }}
	c.send = func(p []byte) error { _, err := conn.Write(p); return err }
	t.Cleanup(c.close)
	return c
}

// dialSocket speaks the same over a WebSocket.
func dialSocket(t *testing.T, w *world, query string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, w.url+"/v1/environments/fuse-t/attach?"+query, &websocket.DialOptions{Subprotocols: []string{attachframe.WebSocketProtocol}}) //nolint:bodyclose // it is the connection
	if err != nil {
		t.Fatal(err)
	}
	if conn.Subprotocol() != attachframe.WebSocketProtocol {
		t.Errorf("the protocol is %q", conn.Subprotocol())
	}
	return &client{
		t: t, close: func() { _ = conn.CloseNow() },
		send: func(p []byte) error { return conn.Write(ctx, websocket.MessageBinary, p) },
		next: func() (attachframe.Type, []byte, error) {
			_, m, err := conn.Read(ctx)
			if err != nil {
				return 0, nil, err
			}
			return attachframe.NewReader(bytes.NewReader(m)).Next()
		},
	}
}

func (c *client) types(text string) {
	c.t.Helper()
	if err := c.send(attachframe.Append(nil, attachframe.Stdin, []byte(text))); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) resize(size string) {
	c.t.Helper()
	if err := c.send(attachframe.Append(nil, attachframe.Resize, []byte(size))); err != nil {
		c.t.Fatal(err)
	}
}

// shows reads until the screen has a text.
func (c *client) shows(text string) {
	c.t.Helper()
	for !strings.Contains(c.screen.String(), text) {
		typ, payload, err := c.next()
		if err != nil || typ == attachframe.Exit {
			c.t.Fatalf("no %q: frame %d %q, %v; screen %q", text, typ, payload, err, c.screen.String())
		}
		c.screen.Write(payload)
	}
}

func (c *client) exits() attachframe.ExitStatus {
	c.t.Helper()
	for {
		typ, payload, err := c.next()
		if err != nil {
			c.t.Fatalf("no exit: %v; screen %q", err, c.screen.String())
		}
		if typ != attachframe.Exit {
			c.screen.Write(payload)
			continue
		}
		var s attachframe.ExitStatus
		if err := json.Unmarshal(payload, &s); err != nil {
			c.t.Fatal(err)
		}
		if _, _, err := c.next(); err == nil {
			c.t.Error("frames follow the exit")
		}
		return s
	}
}

// unused waits until no call uses the environment: one ends a moment after its
// answer, or its process.
func (w *world) unused() {
	w.t.Helper()
	w.uses(0)
}

// uses waits until as many calls use the environment.
func (w *world) uses(n int) {
	w.t.Helper()
	testkit.Eventually(w.t, time.Minute, fmt.Sprint("uses that are open: ", n), func() bool { a, _ := w.guests.Activity(w.uid); return a.Open == n })
}

func TestAttach(t *testing.T) {
	w := newWorld(t)
	for name, dial := range map[string]func(*testing.T, *world, string) *client{"raw": dialRaw, "websocket": dialSocket} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, w, "tty=1&rows=33&cols=99&cmd=sh&cmd=-c&cmd="+url.QueryEscape(`stty size; trap 'stty size' WINCH; echo ready; while :; do read -r a || continue; [ "$a" = over ] && exit 5; echo "got $a"; done`))
			c.shows("33 99\r\nready\r\n")
			c.resize(`{"rows":44,"cols":100000}`)
			c.shows("44 65535")
			c.resize(`{"rows":-1,"cols":3}`) // ignored
			c.resize(`nonsense`)
			if err := c.send(attachframe.Append(nil, 99, []byte("unknown types are skipped"))); err != nil {
				t.Fatal(err)
			}
			c.types("h\xc3") // a character in two frames
			c.types("\xa9llo\n")
			c.shows("got h\u00e9llo\r\n")
			c.types("over\n")
			if s := c.exits(); s.ExitCode != 5 {
				t.Errorf("exit %+v", s)
			}
		})
	}
	testkit.Eventually(t, time.Minute, "no process is left", func() bool { return w.want(200, "GET", "/processes", "") == "{\"processes\":[]}\n" })
	w.unused()
}

func TestAttachSignalsAndEnd(t *testing.T) {
	w := newWorld(t)
	c := dialRaw(t, w, "tty=true&cmd=sh&cmd=-c&cmd="+url.QueryEscape("echo up; exec sleep 600"))
	c.shows("up\r\n")
	c.types("\x03")
	if s := c.exits(); s.ExitCode != 130 || s.Signal != "INT" {
		t.Errorf("exit %+v", s)
	}
	c = dialRaw(t, w, "tty=1&cmd=/not/there")
	if s := c.exits(); s.ExitCode != 127 || !strings.Contains(c.screen.String(), "not found") {
		t.Errorf("exit %+v, screen %q", s, c.screen.String())
	}
	c = dialRaw(t, w, "tty=1&cmd=sh&cmd=-c&cmd="+url.QueryEscape("echo up; exec sleep 600"))
	c.shows("up\r\n")
	w.uses(1)
	c.close() // and with it the command
	testkit.Eventually(t, time.Minute, "no process is left", func() bool { return w.want(200, "GET", "/processes", "") == "{\"processes\":[]}\n" })
}

func TestAttachToAProcess(t *testing.T) {
	w := newWorld(t)
	w.process("POST", "/processes", `{"id":"a","tty":{"rows":24,"cols":80},"hold":true,"shell":"echo one; while read -r a; do echo got $a; done"}`, 201)
	c := dialRaw(t, w, "tty=1&process=a")
	c.shows("one\r\n")
	c.types("two\n")
	c.shows("got two\r\n")
	seen := c.screen.Len()
	c.close()
	c = dialSocket(t, w, fmt.Sprintf("tty=1&process=a&offset=%d", seen))
	c.types("three\n")
	c.shows("got three\r\n")
	if strings.Contains(c.screen.String(), "two") {
		t.Errorf("what was seen is shown again: %q", c.screen.String())
	}
	c.types("\x04")
	if s := c.exits(); s.ExitCode != 0 && s.ExitCode != 1 {
		t.Errorf("exit %+v", s)
	}
	w.process("POST", "/processes", `{"id":"b","cmd":["sleep","600"]}`, 201)
	for query, status := range map[string]int{"tty=1&process=b": 409, "tty=1&process=c": 404, "tty=1&process=a&offset=99999": 400} {
		if got := refusal(t, w, query, "fuse-attach/1"); got != status {
			t.Errorf("%s: %d", query, got)
		}
	}
}

func TestTwoTerminalsTypeAtOneProcess(t *testing.T) {
	w := newWorld(t)
	w.process("POST", "/processes", `{"id":"a","tty":{"rows":24,"cols":80},"hold":true,"shell":"echo one; while read -r a; do echo got $a; done"}`, 201)
	a, b := dialRaw(t, w, "tty=1&process=a"), dialSocket(t, w, "tty=1&process=a")
	a.shows("one\r\n")
	b.shows("one\r\n")
	for _, c := range []struct {
		by   *client
		text string
	}{{a, "aaaa"}, {b, "bb"}, {b, "bbb"}, {a, "aa"}} {
		c.by.types(c.text + "\n")
		a.shows("got " + c.text + "\r\n")
		b.shows("got " + c.text + "\r\n")
	}
}

func TestATerminalThatComesBackIsToldWhatWasTaken(t *testing.T) {
	w := newWorld(t)
	w.process("POST", "/processes", `{"id":"a","tty":{"rows":24,"cols":80},"hold":true,"shell":"echo one; while read -r a; do echo got $a; done"}`, 201)
	c := dialRaw(t, w, "tty=1&process=a&input=k")
	if got := c.header.Get("Fuse-Input"); got != "0" {
		t.Errorf("a new input is told %q", got)
	}
	c.types("two\n")
	for taken := false; !taken; {
		typ, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if taken = typ == attachframe.Taken; taken && string(payload) != `{"taken":4}` {
			t.Errorf("told %q", payload)
		}
	}
	c.close()
	if c = dialRaw(t, w, "tty=1&process=a&input=k"); c.header.Get("Fuse-Input") != "4" {
		t.Errorf("it is told %q", c.header.Get("Fuse-Input"))
	}
	if c = dialRaw(t, w, "tty=1&process=a"); c.header.Get("Fuse-Input") != "" {
		t.Errorf("a public client is told %q", c.header.Get("Fuse-Input"))
	}
	if got := refusal(t, w, "tty=1&process=a&input=a+b", "fuse-attach/1"); got != 400 {
		t.Errorf("a bad name: %d", got)
	}
}

// refusal is the status of an attach that is an ordinary answer.
func refusal(t *testing.T, w *world, query, upgrade string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/environments/fuse-t/attach?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	if upgrade != "" {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", upgrade)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

func TestAttachIsRefusedAsAnOrdinaryAnswer(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string][2]string{
		"no upgrade": {"tty=1", ""}, "other upgrade": {"tty=1", "h2c"}, "no tty": {"", "fuse-attach/1"}, "env": {"tty=1&env=x", "fuse-attach/1"},
		"user": {"tty=1&user=nobody-here&cmd=id", "fuse-attach/1"}, "cwd": {"tty=1&cwd=/not/there&cmd=id", "fuse-attach/1"},
	} {
		if got := refusal(t, w, c[0], c[1]); got != 400 {
			t.Errorf("%s: %d", name, got)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/environments/fuse-t/attach?tty=1&cmd=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": "https://elsewhere.example",
	} {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another site: %d", res.StatusCode)
	}
}

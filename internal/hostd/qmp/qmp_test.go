package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const greeting = `{"QMP":{"version":{"qemu":{"major":7}},"capabilities":[]}}` + "\n"

// peer plays QEMU on the other end of a socket pair: it greets, accepts the
// capabilities and leaves the rest to serve.
func peer(t *testing.T, serve func(*bufio.Reader, *net.UnixConn)) *net.UnixConn {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "qmp")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer ends[1].Close()
		r := bufio.NewReader(ends[1])
		_, _ = io.WriteString(ends[1], greeting)
		reply(r, ends[1], `{}`)
		serve(r, ends[1])
	}()
	t.Cleanup(func() { ends[0].Close(); <-done })
	return ends[0]
}

// reply answers one command, whatever it is, and returns it.
func reply(r *bufio.Reader, w io.Writer, ret string) map[string]any {
	line, err := r.ReadBytes('\n')
	var m map[string]any
	if err != nil || json.Unmarshal(line, &m) != nil {
		return nil
	}
	fmt.Fprintf(w, `{"return": %s, "id": "%v"}`+"\r\n", ret, m["id"])
	return m
}

func TestCallsEventsAndErrors(t *testing.T) {
	conn := peer(t, func(r *bufio.Reader, w *net.UnixConn) {
		_, _ = io.WriteString(w, `{"event":"STOP","timestamp":{"seconds":5,"microseconds":7},"data":{"a":1}}`+"\n")
		reply(r, w, `{"status":"running"}`)
		line, _ := r.ReadBytes('\n')
		var m map[string]any
		_ = json.Unmarshal(line, &m)
		fmt.Fprintf(w, `{"id":"%v","error":{"class":"GenericError","desc":"no such thing"}}`+"\n", m["id"])
	})
	var events []Event
	c, err := New(t.Context(), conn, func(e Event) { events = append(events, e) })
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Status string }
	if err := c.Execute(t.Context(), "query-status", nil, &got); err != nil || got.Status != "running" {
		t.Errorf("query-status: %+v, %v", got, err)
	}
	err = c.Execute(t.Context(), "bad", map[string]any{"x": 1}, nil)
	var qe *Error
	if !errors.As(err, &qe) || qe.Class != "GenericError" || err.Error() != "qmp: bad: no such thing" {
		t.Errorf("bad: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if len(events) != 1 || events[0].Name != "STOP" || string(events[0].Data) != `{"a":1}` || events[0].At.UnixMicro() != 5_000_007 {
		t.Errorf("events: %+v", events)
	}
	if err := c.Execute(t.Context(), "late", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAnswersFindTheirCalls(t *testing.T) {
	conn := peer(t, func(r *bufio.Reader, w *net.UnixConn) {
		var held []string
		for range 8 {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			var m struct {
				Execute, ID string
			}
			_ = json.Unmarshal(line, &m)
			held = append(held, fmt.Sprintf(`{"return":{"you":%q},"id":%q}`, m.Execute, m.ID))
		}
		for i := range held { // in the other order
			fmt.Fprintln(w, held[len(held)-1-i])
		}
	})
	c, err := New(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			var got struct{ You string }
			want := fmt.Sprint("cmd", i)
			if err := c.Execute(t.Context(), want, nil, &got); err != nil || got.You != want {
				t.Errorf("%s got the answer of %q (%v)", want, got.You, err)
			}
		})
	}
	wg.Wait()
}

func TestAnEndedContextLetsGo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release := make(chan struct{})
	conn := peer(t, func(r *bufio.Reader, w *net.UnixConn) {
		line, _ := r.ReadBytes('\n')
		cancel()
		<-release
		var m map[string]any
		_ = json.Unmarshal(line, &m)
		fmt.Fprintf(w, `{"return":{},"id":"%v"}`+"\n", m["id"])
		reply(r, w, `{"n":2}`)
	})
	c, err := New(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Execute(ctx, "slow", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("slow: %v", err)
	}
	close(release)
	var got struct{ N int }
	if err := c.Execute(t.Context(), "next", nil, &got); err != nil || got.N != 2 {
		t.Errorf("the late answer disturbed the next call: %+v, %v", got, err)
	}
}

// What is asked when the context has ended already is not sent: no answer can come
// before that is noticed.
func TestAnEndedContextSendsNothing(t *testing.T) {
	conn := peer(t, func(r *bufio.Reader, w *net.UnixConn) {
		if m := reply(r, w, `{}`); m["execute"] != "next" {
			t.Errorf("QEMU was asked %v", m)
		}
	})
	c, err := New(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if err := c.Execute(ctx, "late", nil, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("late: %v", err)
		}
	}
	if err := c.Execute(t.Context(), "next", nil, nil); err != nil {
		t.Error(err)
	}
}

// A QEMU that has ended is said to be so by who writes to it, too: its end may not
// have been read yet.
func TestAnEndThatIsFoundByWriting(t *testing.T) {
	ended, tried := make(chan error, 1), make(chan struct{})
	conn := peer(t, func(_ *bufio.Reader, w *net.UnixConn) {
		ended <- w.CloseRead()
		<-tried
	})
	c, err := New(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer close(tried)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := c.Execute(t.Context(), "x", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestAPeerThatTalksNonsense(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "hello\n", "a huge line": strings.Repeat("x", maxLine+1), "nothing": ""} {
		conn := peer(t, func(r *bufio.Reader, w *net.UnixConn) { _, _ = io.WriteString(w, text) })
		c, err := New(t.Context(), conn, nil)
		if err != nil {
			continue // it ended before the capabilities were in
		}
		<-c.Done()
		if err := c.Execute(t.Context(), "x", nil, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
	}
}

func TestDescriptorsTravel(t *testing.T) {
	got := make(chan string, 1)
	conn := peer(t, func(_ *bufio.Reader, w *net.UnixConn) {
		buf, oob := make([]byte, 512), make([]byte, 128)
		n, oobn, _, _, err := w.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		msgs, _ := syscall.ParseSocketControlMessage(oob[:oobn])
		fds, _ := syscall.ParseUnixRights(&msgs[0])
		f := os.NewFile(uintptr(fds[0]), "received")
		text, _ := io.ReadAll(f)
		f.Close()
		got <- string(text)
		var m map[string]any
		_ = json.Unmarshal(buf[:n], &m)
		fmt.Fprintf(w, `{"return":{},"id":"%v"}`+"\n", m["id"])
	})
	c, err := New(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("through"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := c.ExecuteFile(t.Context(), "getfd", map[string]string{"fdname": "x"}, nil, f); err != nil {
		t.Fatal(err)
	}
	if text := <-got; text != "through" {
		t.Errorf("the peer read %q", text)
	}
}

func TestRealQEMU(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // longer than a socket address
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("qemu-system-x86_64", "-M", "none", "-display", "none", "-nodefaults", "-qmp", "unix:q.sock,server=on,wait=off")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var c *Client
	testkit.Eventually(t, time.Minute, "QEMU opens its socket", func() bool {
		var err error
		c, err = Dial(ctx, filepath.Join(dir, "q.sock"), nil)
		return err == nil
	})
	defer c.Close()
	var st struct{ Running bool }
	if err := c.Execute(ctx, "query-status", nil, &st); err != nil || !st.Running {
		t.Errorf("query-status: %+v, %v", st, err)
	}
	if err := c.Execute(ctx, "quit", nil, nil); err != nil {
		t.Error(err)
	}
	<-c.Done()
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(greeting))
	f.Add([]byte(`{"return":{},"id":"1"}`))
	f.Add([]byte(`{"event":"STOP","timestamp":{"seconds":1,"microseconds":2}}`))
	f.Add([]byte(`{"error":{"class":"a","desc":"b"},"id":"18446744073709551616"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := decode(line)
		if err != nil {
			return
		}
		c := &Client{pending: map[uint64]chan response{1: make(chan response, 1)}}
		c.answer(m)
		c.answer(m) // an answer that comes twice must not block
	})
}

// A guest that makes its QEMU tell without end costs this process little; one
// that tells now and then is not held up.
func TestAFloodOfEventsIsReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		p := pace{since: begun}
		for range 5 * eventsBurst {
			p.event()
		}
		if took := time.Since(begun); took != 5*eventsEvery {
			t.Errorf("a flood of 5 bursts took %v", took)
		}
		begun = time.Now()
		p = pace{since: begun}
		for range 2 * eventsBurst {
			p.event()
			time.Sleep(2 * eventsEvery / eventsBurst) //nolint:forbidigo // of the bubble
		}
		if took := time.Since(begun); took != 4*eventsEvery {
			t.Errorf("half as many as are taken took %v", took)
		}
	})
}

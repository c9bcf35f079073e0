package sshx_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/testkit"
)

func pool(t *testing.T) *sshx.Pool {
	p := sshx.NewPool(patient)
	t.Cleanup(p.Close)
	return p
}

func TestPoolKeepsOneConnection(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	p := pool(t)
	var mu sync.Mutex
	seen := map[*sshx.Conn]bool{}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			c, err := p.Conn(t.Context(), "mq1", target(s))
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Run(t.Context(), sshx.Command{Line: "true"}); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[c] = true
		})
	}
	all.Wait()
	if live, draining := p.Open(); len(seen) != 1 || live != 1 || draining != 0 {
		t.Errorf("%d connections seen, %d live, %d draining", len(seen), live, draining)
	}
}

// A connection that is replaced lets what is under way on it end; one that
// broke is replaced at the next use.
func TestPoolDrains(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	link := sshdtest.NewLink(t, s.Address)
	p := pool(t)
	to := target(s)
	old, err := p.Conn(t.Context(), "mq1", to)
	if err != nil {
		t.Fatal(err)
	}
	began, release := &signalWriter{c: make(chan struct{})}, newPipe()
	ended := make(chan error, 1)
	go func() {
		_, err := old.Run(t.Context(), sshx.Command{Line: "echo; read line; exit 0", Input: release, Stdout: began})
		ended <- err
	}()
	<-began.c
	to.Address = link.Address // another way to the same host
	c, err := p.Conn(t.Context(), "mq1", to)
	if err != nil || c == old {
		t.Fatalf("%v, the same connection: %v", err, c == old)
	}
	if live, draining := p.Open(); live != 1 || draining != 1 {
		t.Errorf("%d live, %d draining", live, draining)
	}
	release.end("go\n")
	if err := <-ended; err != nil {
		t.Errorf("what was under way on the replaced connection: %v", err)
	}
	<-old.Done()

	link.Cut()
	<-c.Done()
	c, err = p.Conn(t.Context(), "mq1", to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(t.Context(), sshx.Command{Line: "true"}); err != nil {
		t.Error(err)
	}
	p.Drop("mq1")
	<-c.Done()
	testkit.Eventually(t, time.Minute, "nothing is open", func() bool { live, draining := p.Open(); return live+draining == 0 })
}

// Many marquees behind one server that has sshd's own limits: no login is
// refused, because they do not all come at once.
func TestPoolUnderMaxStartups(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{Config: []string{"MaxStartups 10:30:100", "MaxSessions 10", "LoginGraceTime 120"}})
	p := pool(t)
	many := testkit.Count(14, 100)
	before := runtime.NumGoroutine()
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			c, err := p.Conn(t.Context(), fmt.Sprint("mq", i), target(s))
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Run(t.Context(), sshx.Command{Line: "true"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if live, _ := p.Open(); live != many {
		t.Errorf("%d live", live)
	}
	p.Close()
	testkit.Eventually(t, time.Minute, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before+2 })
	_, err := p.Conn(t.Context(), "mq1", target(s))
	wantEnding(t, err, observe.EndedDial)
}

// A caller that gives up does not fail those that wait for the same
// connection.
func TestPoolGivenUp(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	link := sshdtest.NewLink(t, s.Address)
	to := target(s)
	to.Address = link.Address
	p := pool(t)
	link.Hold()
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := p.Conn(ctx, "mq1", to); first <- err }()
	testkit.Eventually(t, time.Minute, "the first dials", func() bool { return link.Open() > 0 })
	go func() { _, err := p.Conn(t.Context(), "mq1", to); second <- err }()
	cancel()
	if err := <-first; err == nil {
		t.Error("a caller that gave up got a connection")
	}
	link.Release()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// People's commands leave room for the looks.
func TestStreams(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	c := dial(t, target(s), patient)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ended sync.WaitGroup
	for range sshx.MaxStreams {
		began := &signalWriter{c: make(chan struct{})}
		ended.Go(func() {
			_, err := c.Run(ctx, sshx.Command{Line: "echo; exec sleep 120", Stream: true, Stdout: began})
			wantEnding(t, err, observe.EndedDeadline)
		})
		<-began.c
	}
	if _, err := c.Run(t.Context(), sshx.Command{Line: "true", Stream: true}); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("one stream too many: %v", err)
	}
	if _, err := c.Run(t.Context(), sshx.Command{Line: "true"}); err != nil {
		t.Errorf("a look beside streams: %v", err)
	}
	cancel()
	ended.Wait()
}

func TestTerminal(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	c := dial(t, target(s), patient)
	in, sizes := newPipe(), make(chan sshx.Size)
	var out testkit.Output
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	go func() {
		res, err := c.Run(ctx, sshx.Command{
			Line: "stty size; while read line; do stty size; [ $line != end ] || exit 7; done", Input: in, Stdout: &out, Stream: true,
			Terminal: &sshx.Terminal{Name: "vt100", Size: sshx.Size{Rows: 33, Columns: 77}, Resizes: sizes},
		})
		if err == nil && res.Status != 7 {
			err = fmt.Errorf("status %d", res.Status)
		}
		ended <- err
	}()
	testkit.Eventually(t, time.Minute, "its size", func() bool { return strings.Contains(out.String(), "33 77") })
	sizes <- sshx.Size{Rows: 44, Columns: 99}
	testkit.Eventually(t, time.Minute, "its new size", func() bool {
		in.send("again\n")
		return strings.Contains(out.String(), "44 99")
	})
	in.end("end\n")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An agent that hangs, and one with more keys than sshd has patience for.
func TestAgents(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	t.Run("hangs", func(t *testing.T) {
		to := sshx.Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Agent: sshdtest.Agent(t, nil)}
		_, err := sshx.Dial(t.Context(), to, sshx.Timeouts{Handshake: 300 * time.Millisecond})
		if err == nil {
			t.Error("connected")
		}
	})
	t.Run("many keys", func(t *testing.T) {
		keys := agent.NewKeyring()
		for range 9 {
			add(t, keys, sshdtest.NewKey(t))
		}
		to := sshx.Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Agent: sshdtest.Agent(t, keys)}
		_, err := sshx.Dial(t.Context(), to, patient)
		wantEnding(t, err, observe.EndedAuth)
		to.Keys = [][]byte{s.Key} // is asked for first
		dial(t, to, patient)
	})
	t.Run("none there", func(t *testing.T) {
		to := sshx.Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Agent: "/nowhere/agent"}
		_, err := sshx.Dial(t.Context(), to, patient)
		wantEnding(t, err, observe.EndedAuth)
	})
}

func add(t *testing.T, keys agent.Agent, pem []byte) {
	t.Helper()
	key, err := ssh.ParseRawPrivateKey(pem)
	if err == nil {
		err = keys.Add(agent.AddedKey{PrivateKey: key})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pipe is standard input that a test feeds.
type pipe struct {
	*io.PipeReader
	w *io.PipeWriter
}

func newPipe() *pipe {
	r, w := io.Pipe()
	return &pipe{r, w}
}

func (p *pipe) send(text string) { p.w.Write([]byte(text)) }
func (p *pipe) end(text string) {
	p.send(text)
	p.w.Close()
}

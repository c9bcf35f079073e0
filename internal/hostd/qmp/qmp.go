// Package qmp speaks QEMU's machine protocol: JSON lines over a unix socket,
// with file descriptors beside them. It is as small as this project's needs.
package qmp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// maxLine bounds one message of QEMU, in bytes.
const maxLine = 4 << 20

// handshakeTimeout bounds greeting and capabilities. QEMU greets once it has all
// of its guest's memory, which takes a while on a busy host, or of huge pages;
// one that dies before ends the connection.
const handshakeTimeout = 2 * time.Minute

// ErrClosed is returned once the connection has ended.
var ErrClosed = errors.New("qmp: connection closed")

// Error is an error that QEMU answered.
type Error struct {
	Command string
	Class   string
	Desc    string
}

func (e *Error) Error() string { return "qmp: " + e.Command + ": " + e.Desc }

// Event is something QEMU said by itself.
type Event struct {
	Name string
	Data json.RawMessage
	At   time.Time // QEMU's wall clock
}

// Client is one connection to one QEMU. A QEMU's socket serves one client at
// a time. Calls may be made at once.
type Client struct {
	conn    *net.UnixConn
	onEvent func(Event)

	write chan struct{} // holds one token: the right to write a message

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]chan response
	err     error
	done    chan struct{}
}

type response struct {
	ret json.RawMessage
	err error
}

// message is anything that QEMU sends.
type message struct {
	Greeting json.RawMessage `json:"QMP"`
	Return   json.RawMessage `json:"return"`
	ID       string          `json:"id"`
	Error    *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

// Dial connects to the socket at path and negotiates. onEvent is called for
// each event, in order, by the connection's only reader: it must not block.
// Paths longer than a socket address are reached through their directory.
func Dial(ctx context.Context, path string, onEvent func(Event)) (*Client, error) {
	conn, err := dialUnix(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("qmp: %w", err)
	}
	return New(ctx, conn, onEvent)
}

// New negotiates on a connection and owns it from then on.
func New(ctx context.Context, conn *net.UnixConn, onEvent func(Event)) (*Client, error) {
	if onEvent == nil {
		onEvent = func(Event) {}
	}
	c := &Client{conn: conn, onEvent: onEvent, write: make(chan struct{}, 1), pending: map[uint64]chan response{}, done: make(chan struct{})}
	greeted := make(chan struct{})
	go c.read(greeted) // ends with the connection; Close waits for it
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	select {
	case <-greeted:
	case <-c.done:
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("qmp: no greeting: %w", ctx.Err()), c.Close())
	}
	if err := c.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func dialUnix(ctx context.Context, path string) (*net.UnixConn, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", ShortPath(dir, filepath.Base(path)))
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// ShortPath names a file in an open directory so that it fits into a socket
// address, whatever the directory's path.
func ShortPath(dir *os.File, name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), name)
}

// Done is closed once the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection and waits for its reader. QEMU goes on.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Execute runs a command; args and result may be nil.
func (c *Client) Execute(ctx context.Context, command string, args, result any) error {
	return c.ExecuteFile(ctx, command, args, result, nil)
}

// ExecuteFile runs a command that takes a file descriptor, such as getfd or
// add-fd. The file stays the caller's.
func (c *Client) ExecuteFile(ctx context.Context, command string, args, result any, file *os.File) error {
	if err := ctx.Err(); err != nil { // else it would be chance whether QEMU obeys
		return fmt.Errorf("qmp: %s: %w", command, err)
	}
	id, answer, err := c.register()
	if err != nil {
		return fmt.Errorf("%w (%s)", err, command)
	}
	defer c.forget(id)
	line, err := encode(command, args, id)
	if err != nil {
		return err
	}
	if err := c.send(ctx, line, file); err != nil {
		return fmt.Errorf("qmp: %s: %w", command, err)
	}
	select {
	case r := <-answer:
		return r.into(command, result)
	case <-c.done:
		select { // the answer may have come last
		case r := <-answer:
			return r.into(command, result)
		default:
			return fmt.Errorf("%w (%s)", ErrClosed, command)
		}
	case <-ctx.Done():
		return fmt.Errorf("qmp: %s: %w", command, ctx.Err())
	}
}

func (r response) into(command string, result any) error {
	var qe *Error
	if errors.As(r.err, &qe) {
		qe.Command = command
	}
	if r.err != nil || result == nil {
		return r.err
	}
	if err := json.Unmarshal(r.ret, result); err != nil {
		return fmt.Errorf("qmp: answer to %s: %w", command, err)
	}
	return nil
}

func encode(command string, args any, id uint64) ([]byte, error) {
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        string `json:"id"`
	}{command, args, strconv.FormatUint(id, 10)})
	if err != nil {
		return nil, fmt.Errorf("qmp: %s: %w", command, err)
	}
	return append(line, '\n'), nil
}

func (c *Client) register() (uint64, chan response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, ErrClosed
	}
	c.nextID++
	answer := make(chan response, 1)
	c.pending[c.nextID] = answer
	return c.nextID, answer, nil
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

func (c *Client) send(ctx context.Context, line []byte, file *os.File) error {
	select {
	case c.write <- struct{}{}:
		defer func() { <-c.write }()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return ErrClosed
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Time{}
	}
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	var oob []byte
	if file != nil {
		oob = syscall.UnixRights(int(file.Fd()))
	}
	n, _, err := c.conn.WriteMsgUnix(line, oob, nil)
	if err == nil && n < len(line) {
		_, err = c.conn.Write(line[n:])
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrClosed, err) // its end may not have been read yet
	}
	return err
}

// A guest can make QEMU tell events as often as it likes. One that overdoes it
// is read slowly, and what waits costs its own process memory.
const (
	eventsBurst = 1000
	eventsEvery = time.Second
)

// pace holds the reader up once there were eventsBurst events in eventsEvery.
type pace struct {
	since time.Time
	n     int
}

func (p *pace) event() {
	if p.n++; p.n < eventsBurst {
		return
	}
	time.Sleep(eventsEvery - time.Since(p.since))
	p.since, p.n = time.Now(), 0
}

func (c *Client) read(greeted chan struct{}) {
	defer close(c.done)
	pace := pace{since: time.Now()}
	s := bufio.NewScanner(c.conn)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	for s.Scan() {
		m, err := decode(s.Bytes())
		if err != nil {
			c.fail(err)
			return
		}
		switch {
		case m.Greeting != nil:
			if greeted != nil {
				close(greeted)
				greeted = nil
			}
		case m.Event != "":
			pace.event()
			c.onEvent(Event{Name: m.Event, Data: m.Data, At: time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*1000)})
		default:
			c.answer(m)
		}
	}
	c.fail(s.Err())
}

// decode reads one line of QEMU's.
func decode(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(bytes.TrimSpace(line), &m); err != nil {
		return message{}, fmt.Errorf("qmp: QEMU sent no JSON: %w", err)
	}
	return m, nil
}

func (c *Client) answer(m message) {
	r := response{ret: m.Return}
	if m.Error != nil {
		r.err = &Error{Class: m.Error.Class, Desc: m.Error.Desc}
	}
	id, err := strconv.ParseUint(m.ID, 10, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer := c.pending[id]; err == nil && answer != nil {
		delete(c.pending, id)
		answer <- r // has room for the one answer
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(ErrClosed, err)
	_ = c.conn.Close()
}

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/fleet"
)

// Guest reaches into the environments of a server: processes, terminals, files.
// What a cut connection breaks off is taken up without losing or repeating a
// byte.
type Guest struct{ api *API }

// NewGuest works by a's connection.
func NewGuest(a *API) Guest { return Guest{a} }

// Start starts a process; a repeat with its id starts nothing.
func (g Guest) Start(ctx context.Context, env string, req gen.StartProcess) (p gen.Process, err error) {
	err = g.again(ctx, func() int64 { return 0 }, func() error {
		resp, err := g.api.raw.StartProcess(ctx, env, req)
		return decode(resp, err, &p)
	})
	return p, err
}

// Processes lists those that run or are kept.
func (g Guest) Processes(ctx context.Context, env string) (list gen.ProcessList, err error) {
	resp, err := g.api.raw.ListProcesses(ctx, env)
	return list, decode(resp, err, &list)
}

// Console returns what the environment's machine wrote to its console.
func (g Guest) Console(ctx context.Context, env string) (log gen.ConsoleLog, err error) {
	resp, err := g.api.raw.GetConsole(ctx, env, &gen.GetConsoleParams{})
	return log, decode(resp, err, &log)
}

// Services lists those of the environment's manifest.
func (g Guest) Services(ctx context.Context, env string) (list gen.ServiceList, err error) {
	resp, err := g.api.raw.ListServices(ctx, env)
	return list, decode(resp, err, &list)
}

// Process returns one process; with wait, once it has ended or after that time.
func (g Guest) Process(ctx context.Context, env, id string, wait time.Duration) (p gen.Process, err error) {
	params := &gen.GetProcessParams{}
	if wait > 0 {
		params.WaitMs = new(wait.Milliseconds())
	}
	resp, err := g.api.raw.GetProcess(ctx, env, id, params)
	return p, decode(resp, err, &p)
}

// Act does signal, resize or adjust.
func (g Guest) Act(ctx context.Context, env, id, action string, body gen.ProcessAction) error {
	resp, err := g.api.raw.ActOnProcess(ctx, env, id, &gen.ActOnProcessParams{Action: action}, body)
	return decode(resp, err, nil)
}

// Remove ends a process with all it started and forgets it.
func (g Guest) Remove(ctx context.Context, env, id string) error {
	resp, err := g.api.raw.RemoveProcess(ctx, env, id)
	return decode(resp, err, nil)
}

// outputLimit is how much output one request asks for, in bytes: what a process
// that holds its output goes on after.
const outputLimit = 1 << 20

// Bounds of taking up what broke off.
const (
	retryPause = 250 * time.Millisecond
	retryMost  = 5 * time.Second
	retryFor   = 2 * time.Minute
)

// again repeats what a broken connection cut off, until something answers, or
// nothing has for retryFor. far says how far the call has come: what comes on,
// however slowly and with however many cuts, is not given up.
func (g Guest) again(ctx context.Context, far func() int64, call func() error) error {
	pause, began := retryPause, time.Now()
	for tries, last := 0, far(); ; tries++ {
		err := call()
		if now := far(); tries == 0 || now != last {
			pause, began, last = retryPause, time.Now(), now
		}
		if err == nil || isFinalCut(err) || ctx.Err() != nil || time.Since(began) > retryFor {
			return err
		}
		g.api.notice("the connection broke (" + err.Error() + "); taking it up again")
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		pause = min(2*pause, retryMost)
	}
}

// isFinalCut tells answers from cuts: an answer is not asked for again, but for
// that of a server that is just not there, and for an upload that met an earlier
// call of its own, which was still on its way when its connection broke, and for
// a host agent that has just begun and has yet to take hold of the machine. A full
// disk is an answer too: it does not get emptier by asking.
func isFinalCut(err error) bool {
	var answer *Error
	var own *callbackError
	if errors.As(err, &own) {
		return true
	}
	if errors.As(err, &answer) && answer.Status == http.StatusConflict {
		reason := answer.Details[fleet.DetailReason]
		return reason != "taken_up" && reason != "offset" && reason != "unadopted"
	}
	if errors.As(err, &answer) && answer.Details[fleet.DetailReason] == "disk_full" {
		return true
	}
	return errors.As(err, &answer) && answer.Status != http.StatusServiceUnavailable && answer.Status != http.StatusBadGateway
}

// ProcessOutput is where a process's output goes. From is how much of each stream was
// seen before; with Follow what is yet to come is awaited.
type ProcessOutput struct {
	Stdout, Stderr         io.Writer
	FromStdout, FromStderr int64
	Follow                 bool
	// Dropped, if set, is told of bytes that nobody can read any more.
	Dropped func(stream int, bytes int64)
}

// CopyOutput copies a process's output. The result is nil when the process has
// not ended yet, which it has with Follow.
func (g Guest) CopyOutput(ctx context.Context, env, id string, to ProcessOutput) (exit *attachframe.ExitStatus, err error) {
	c := &outputCopy{to: to, at: [2]int64{to.FromStdout, to.FromStderr}}
	for exit == nil && err == nil {
		before := c.at
		err = g.again(ctx, func() int64 { return c.at[0] + c.at[1] }, func() error {
			exit, err = c.once(ctx, g.api, env, id)
			return err
		})
		if !to.Follow && c.at == before {
			break
		}
	}
	return exit, err
}

type outputCopy struct {
	to ProcessOutput
	at [2]int64
}

// once reads one answer.
func (c *outputCopy) once(ctx context.Context, api *API, env, id string) (*attachframe.ExitStatus, error) {
	params := &gen.GetProcessOutputParams{Stdout: &c.at[0], Stderr: &c.at[1], Follow: &c.to.Follow, Limit: new(int64(outputLimit))}
	resp, err := api.raw.GetProcessOutput(ctx, env, id, params)
	if err != nil {
		return nil, plainURLError(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errorFrom(resp)
	}
	frames := attachframe.NewReader(resp.Body)
	for {
		typ, payload, err := frames.Next()
		if errors.Is(err, io.EOF) {
			return nil, nil //nolint:nilnil // the answer's end, not the process's
		}
		if err != nil {
			return nil, err
		}
		switch typ {
		case attachframe.Stdout, attachframe.Stderr:
			if err := c.write(int(typ)-1, payload); err != nil {
				return nil, &callbackError{err}
			}
		case attachframe.Gap:
			c.skip(payload)
		case attachframe.Exit:
			exit := &attachframe.ExitStatus{}
			return exit, json.Unmarshal(payload, exit)
		}
	}
}

func (c *outputCopy) write(stream int, p []byte) error {
	c.at[stream] += int64(len(p))
	if w := []io.Writer{c.to.Stdout, c.to.Stderr}[stream]; w != nil {
		_, err := w.Write(p)
		return err
	}
	return nil
}

func (c *outputCopy) skip(payload []byte) {
	var hole attachframe.Hole
	if json.Unmarshal(payload, &hole) != nil || hole.Stream < 1 || hole.Stream > 2 {
		return
	}
	if c.to.Dropped != nil {
		c.to.Dropped(hole.Stream, hole.Offset-c.at[hole.Stream-1])
	}
	c.at[hole.Stream-1] = hole.Offset
}

// inputChunk is how much input one request carries, in bytes.
const inputChunk = 512 << 10

// CopyInput sends input to its end. It returns nil as well when the process has
// ended first.
func (g Guest) CopyInput(ctx context.Context, env, id string, in io.Reader) error {
	err := g.AddInput(ctx, env, id, in, 0, true)
	if CodeOf(err) == "conflict" || CodeOf(err) == "not_found" {
		return nil // it has ended
	}
	return err
}

// AddInput sends what goes on at an offset of the input; with last nothing
// follows it.
func (g Guest) AddInput(ctx context.Context, env, id string, in io.Reader, offset int64, last bool) error {
	buf := make([]byte, inputChunk)
	for {
		n, rerr := in.Read(buf)
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return fmt.Errorf("read input: %w", rerr)
		}
		eof := rerr != nil && last
		err := g.again(ctx, func() int64 { return offset }, func() error {
			taken, err := g.sendInput(ctx, env, id, gen.SendProcessInputParams{Offset: offset, EOF: &eof}, buf[:n])
			if err == nil {
				offset = taken
			}
			return err
		})
		if err != nil || rerr != nil {
			return err
		}
	}
}

func (g Guest) sendInput(ctx context.Context, env, id string, params gen.SendProcessInputParams, data []byte) (int64, error) {
	resp, err := g.api.raw.SendProcessInputWithBody(ctx, env, id, &params, "application/octet-stream", bytes.NewReader(data))
	var taken gen.ProcessInput
	err = decode(resp, err, &taken)
	return taken.Offset, err
}

// socket opens a WebSocket to a path of the server.
func socket(ctx context.Context, a *API, path, protocol string) (*websocket.Conn, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.raw.Server+path, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, edit := range a.raw.RequestEditors {
		if err := edit(ctx, req); err != nil {
			return nil, nil, err
		}
	}
	d, ok := a.raw.Client.(doer)
	if !ok {
		return nil, nil, errors.New("a terminal needs the client's own connection")
	}
	conn, resp, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{ //nolint:bodyclose // the connection has it, errorFrom reads it
		HTTPClient: d.http, HTTPHeader: req.Header, Subprotocols: []string{protocol},
	})
	if err != nil && resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, nil, errorFrom(resp)
	}
	if err != nil {
		return nil, nil, plainURLError(err)
	}
	return conn, resp.Header, nil
}

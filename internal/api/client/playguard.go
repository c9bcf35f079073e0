package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Playguard are the marquees and playgrounds of a server.
type Playguard struct{ api *API }

// NewPlayguard works on marquees and playgrounds by a's connection.
func NewPlayguard(a *API) Playguard { return Playguard{a} }

// AddMarquee registers a Docker host.
func (p Playguard) AddMarquee(ctx context.Context, req gen.AddMarquee) (m gen.Marquee, err error) {
	resp, err := p.api.raw.AddMarquee(ctx, &gen.AddMarqueeParams{}, req)
	return m, decode(resp, err, &m)
}

// Marquees returns one page of marquees.
func (p Playguard) Marquees(ctx context.Context, params gen.ListMarqueesParams) (page gen.MarqueeList, err error) {
	resp, err := p.api.raw.ListMarquees(ctx, &params)
	return page, decode(resp, err, &page)
}

// Marquee returns one by id or name.
func (p Playguard) Marquee(ctx context.Context, id string) (m gen.Marquee, err error) {
	resp, err := p.api.raw.GetMarquee(ctx, id)
	return m, decode(resp, err, &m)
}

// CheckMarquee has a marquee looked at now.
func (p Playguard) CheckMarquee(ctx context.Context, id string) (c gen.MarqueeCheck, err error) {
	return c, p.actOnMarquee(ctx, id, "check", gen.MarqueeAction{}, &c)
}

// ChangeMarquee does quarantine, return or policy.
func (p Playguard) ChangeMarquee(ctx context.Context, id, action string, body gen.MarqueeAction) (m gen.Marquee, err error) {
	return m, p.actOnMarquee(ctx, id, action, body, &m)
}

func (p Playguard) actOnMarquee(ctx context.Context, id, action string, body gen.MarqueeAction, into any) error {
	resp, err := p.api.raw.ActOnMarquee(ctx, id, &gen.ActOnMarqueeParams{Action: action}, body)
	return decode(resp, err, into)
}

// RemoveMarquee forgets a marquee, with forget also the playgrounds on it.
func (p Playguard) RemoveMarquee(ctx context.Context, id string, forget bool) error {
	params := &gen.RemoveMarqueeParams{}
	if forget {
		params.Forget = &forget
	}
	resp, err := p.api.raw.RemoveMarquee(ctx, id, params)
	return decode(resp, err, nil)
}

// Adopt takes an orphan of a marquee back into the records.
func (p Playguard) Adopt(ctx context.Context, marquee string, req gen.AdoptPlayground) (g gen.Playground, err error) {
	resp, err := p.api.raw.AdoptPlayground(ctx, marquee, &gen.AdoptPlaygroundParams{}, req)
	return g, decode(resp, err, &g)
}

// Plan says what Up would do.
func (p Playguard) Plan(ctx context.Context, req gen.UpPlayground) (plan gen.PlaygroundPlan, err error) {
	resp, err := p.api.raw.PlanPlayground(ctx, req)
	return plan, decode(resp, err, &plan)
}

// Up makes a playground or gives it a new definition.
func (p Playguard) Up(ctx context.Context, req gen.UpPlayground) (g gen.Playground, err error) {
	resp, err := p.api.raw.UpPlayground(ctx, &gen.UpPlaygroundParams{}, req)
	return g, decode(resp, err, &g)
}

// Playgrounds returns one page of playgrounds.
func (p Playguard) Playgrounds(ctx context.Context, params gen.ListPlaygroundsParams) (page gen.PlaygroundList, err error) {
	resp, err := p.api.raw.ListPlaygrounds(ctx, &params)
	return page, decode(resp, err, &page)
}

// Playground returns one by id or name, after waiting that many seconds for a
// state that lasts.
func (p Playguard) Playground(ctx context.Context, id string, wait int) (g gen.Playground, err error) {
	params := &gen.GetPlaygroundParams{}
	if wait > 0 {
		params.Wait = &wait
	}
	resp, err := p.api.raw.GetPlayground(ctx, id, params)
	return g, decode(resp, err, &g)
}

// Act asks something of a playground.
func (p Playguard) Act(ctx context.Context, id, action string) (g gen.Playground, err error) {
	resp, err := p.api.raw.ActOnPlayground(ctx, id, &gen.ActOnPlaygroundParams{Action: action})
	return g, decode(resp, err, &g)
}

// Destroy destroys a playground; keepVolumes overrides what its record says.
func (p Playguard) Destroy(ctx context.Context, id string, keepVolumes *bool) (g gen.Playground, err error) {
	resp, err := p.api.raw.DestroyPlayground(ctx, id, &gen.DestroyPlaygroundParams{KeepVolumes: keepVolumes})
	return g, decode(resp, err, &g)
}

// Forget drops a playground's record.
func (p Playguard) Forget(ctx context.Context, id string) error {
	resp, err := p.api.raw.DestroyPlayground(ctx, id, &gen.DestroyPlaygroundParams{Forget: new(true)})
	return decode(resp, err, nil)
}

// Explain says why a playground is as it is.
func (p Playguard) Explain(ctx context.Context, id string) (e gen.PlaygroundExplanation, err error) {
	resp, err := p.api.raw.ExplainPlayground(ctx, id)
	return e, decode(resp, err, &e)
}

// Logs copies the output of a playground's containers to w until its end, or
// with Follow until ctx ends.
func (p Playguard) Logs(ctx context.Context, id string, params gen.PlaygroundLogsParams, w io.Writer) error {
	resp, err := p.api.raw.PlaygroundLogs(ctx, id, &params)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return decode(resp, nil, nil)
	}
	defer resp.Body.Close()
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		if text, broke := strings.CutPrefix(string(line), "fuse: "); broke {
			return errors.New(strings.TrimSpace(text))
		}
		if _, werr := w.Write(line); werr != nil {
			return fmt.Errorf("write the logs: %w", werr)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("read the logs: %w", err)
		}
	}
}

// PlaygroundExec is a command in a container, and what it is joined to. Input
// may be nil; sizes of a terminal are followed until ctx ends.
type PlaygroundExec struct {
	gen.ExecPlayground
	Input          io.Reader
	Sizes          <-chan gen.ExecTerminal
	Stdout, Stderr io.Writer
}

// execReadLimit bounds one message of the server, in bytes.
const execReadLimit = 1 << 20

// Exec runs a command and returns its exit status.
func (p Playguard) Exec(ctx context.Context, id string, e PlaygroundExec) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := p.dial(ctx, "v1/playgrounds/"+url.PathEscape(id)+"/exec")
	if err != nil {
		return 0, err
	}
	defer conn.CloseNow() //nolint:errcheck // what is left of it
	conn.SetReadLimit(execReadLimit)
	first, err := json.Marshal(e.ExecPlayground)
	if err != nil {
		return 0, fmt.Errorf("encode a command: %w", err)
	}
	if err := conn.Write(ctx, websocket.MessageText, first); err != nil {
		return 0, fmt.Errorf("send a command: %w", err)
	}
	var goes sync.WaitGroup
	defer func() {
		cancel()
		goes.Wait()
	}()
	goes.Go(func() { followSizes(ctx, conn, e.Sizes) })
	// Not waited for: a read of a terminal ends when it likes.
	go feed(ctx, conn, e.Input)
	for {
		kind, raw, err := conn.Read(ctx)
		switch {
		case err != nil:
			return 0, fmt.Errorf("the connection to the server broke; the command is told to end: %w", err)
		case kind == websocket.MessageText:
			return endOfExec(raw)
		case len(raw) == 0:
			continue
		}
		to := e.Stdout
		if raw[0] == 2 {
			to = e.Stderr
		}
		if _, err := to.Write(raw[1:]); err != nil {
			return 0, fmt.Errorf("write the output of a command: %w", err)
		}
	}
}

func endOfExec(raw []byte) (int, error) {
	var end gen.ExecEnd
	if err := json.Unmarshal(raw, &end); err != nil {
		return 0, fmt.Errorf("read the end of a command: %w", err)
	}
	if end.ExitStatus == nil {
		return 0, &Error{Code: end.Error.Code, Message: end.Error.Message, Details: end.Error.Details}
	}
	return *end.ExitStatus, nil
}

func followSizes(ctx context.Context, conn *websocket.Conn, sizes <-chan gen.ExecTerminal) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-sizes:
			if !ok || control(ctx, conn, gen.ExecControl{Resize: s}) != nil {
				return
			}
		}
	}
}

func control(ctx context.Context, conn *websocket.Conn, c gen.ExecControl) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	return conn.Write(ctx, websocket.MessageText, raw)
}

// feed sends input until its end.
func feed(ctx context.Context, conn *websocket.Conn, in io.Reader) {
	buf := make([]byte, 1+32<<10) // the first byte is 0: standard input
	for in != nil {
		n, err := in.Read(buf[1:])
		if n > 0 && conn.Write(ctx, websocket.MessageBinary, buf[:n+1]) != nil {
			return
		}
		if err != nil {
			break
		}
	}
	control(ctx, conn, gen.ExecControl{EndOfInput: true}) //nolint:errcheck // the reading side tells of a broken connection
}

// dialLimit bounds opening a WebSocket.
const dialLimit = 30 * time.Second

// dial opens a WebSocket with the connection's own credentials.
func (p Playguard) dial(ctx context.Context, path string) (*websocket.Conn, error) {
	within, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	like, err := http.NewRequestWithContext(within, http.MethodGet, p.api.raw.Server+path, nil)
	if err != nil {
		return nil, err
	}
	for _, edit := range p.api.raw.RequestEditors {
		if err := edit(within, like); err != nil {
			return nil, err
		}
	}
	opts := &websocket.DialOptions{HTTPHeader: like.Header, Subprotocols: []string{"fuse.exec.v1"}}
	if d, ok := p.api.raw.Client.(doer); ok {
		opts.HTTPClient = d.http
	}
	conn, resp, err := websocket.Dial(within, like.URL.String(), opts)
	switch {
	case err == nil:
		return conn, nil
	case resp != nil && resp.StatusCode != http.StatusSwitchingProtocols:
		return nil, decode(resp, nil, nil)
	}
	return nil, fmt.Errorf("open a WebSocket to the server: %w", err)
}

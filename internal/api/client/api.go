package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Options of a connection. Transport may be nil. Notice, if there, is told what
// is no error: a warning of the server, a stream that broke and is taken up
// again.
type Options struct {
	Token     string
	UserAgent string
	Transport http.RoundTripper
	Notice    func(text string)
}

// API is a connection to one control plane. It is safe for concurrent use.
type API struct {
	raw    *Client
	notice func(string)
}

// maxAnswer bounds what is read of one answer: a page of 200 rows and the
// output of an exec both fit with room to spare.
const maxAnswer = 64 << 20

// New makes a connection to the server at baseURL, such as
// http://127.0.0.1:8080. Nothing is sent yet.
func New(baseURL string, opts Options) (*API, error) {
	a := &API{notice: opts.Notice}
	if a.notice == nil {
		a.notice = func(string) {}
	}
	// No overall timeout: creates, execs and event streams last as long as they
	// need. Redirects are not followed: they would take bodies elsewhere.
	plain := &http.Client{Transport: opts.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	raw, err := NewClient(baseURL, WithHTTPClient(doer{plain, a.notice}), WithRequestEditorFn(
		func(_ context.Context, r *http.Request) error {
			if opts.Token != "" {
				r.Header.Set("Authorization", "Bearer "+opts.Token)
			}
			if opts.UserAgent != "" {
				r.Header.Set("User-Agent", opts.UserAgent)
			}
			return nil
		}))
	if err != nil {
		return nil, err
	}
	a.raw = raw
	return a, nil
}

// doer passes the server's warnings on.
type doer struct {
	http   *http.Client
	notice func(string)
}

// Do implements HTTPRequestDoer.
func (d doer) Do(r *http.Request) (*http.Response, error) {
	resp, err := d.http.Do(r)
	if err != nil {
		return nil, err
	}
	for _, w := range resp.Header.Values("Warning") {
		d.notice("warning: " + w)
	}
	return resp, nil
}

// CreateOptions say how a create is asked for. IdempotencyKey makes repeating
// it safe; Async returns once the claim is durable.
type CreateOptions struct {
	IdempotencyKey string
	Async          bool
}

// Create makes an environment and returns it running, or provisioning when
// asked for asynchronously.
func (a *API) Create(ctx context.Context, req gen.CreateEnvironment, opts CreateOptions) (env gen.Environment, err error) {
	params := &gen.CreateEnvironmentParams{}
	if opts.IdempotencyKey != "" {
		params.IdempotencyKey = &opts.IdempotencyKey
	}
	if opts.Async {
		params.Prefer = new("respond-async")
	}
	resp, err := a.raw.CreateEnvironment(ctx, params, req)
	return env, decode(resp, err, &env)
}

// Get returns one environment.
func (a *API) Get(ctx context.Context, id string) (env gen.Environment, err error) {
	resp, err := a.raw.GetEnvironment(ctx, id)
	return env, decode(resp, err, &env)
}

// List returns one page of environments.
func (a *API) List(ctx context.Context, params gen.ListEnvironmentsParams) (page gen.EnvironmentList, err error) {
	resp, err := a.raw.ListEnvironments(ctx, &params)
	return page, decode(resp, err, &page)
}

// All follows the pages of List to the end; an error ends the sequence.
func (a *API) All(ctx context.Context, params gen.ListEnvironmentsParams) iter.Seq2[gen.Environment, error] {
	return func(yield func(gen.Environment, error) bool) {
		if params.Limit == nil {
			params.Limit = new(200)
		}
		for {
			page, err := a.List(ctx, params)
			if err != nil {
				yield(gen.Environment{}, err)
				return
			}
			for _, env := range page.Environments {
				if !yield(env, nil) {
					return
				}
			}
			if page.NextCursor == "" {
				return
			}
			params.Cursor = &page.NextCursor
		}
	}
}

// Destroy ends an environment. The result is nil when it is gone, else the
// environment whose host has not confirmed yet.
func (a *API) Destroy(ctx context.Context, id string) (*gen.Environment, error) {
	resp, err := a.raw.DestroyEnvironment(ctx, id, &gen.DestroyEnvironmentParams{})
	var env gen.Environment
	if err := decode(resp, err, &env); err != nil || env.ID == "" {
		return nil, err
	}
	return &env, nil
}

// Drain stops an environment's services and keeps its machine.
func (a *API) Drain(ctx context.Context, id string) (gen.Environment, error) {
	return a.act(ctx, id, "drain")
}

// Complete marks an environment's task completed; teardown follows.
func (a *API) Complete(ctx context.Context, id string) (gen.Environment, error) {
	return a.act(ctx, id, "complete")
}

func (a *API) act(ctx context.Context, id, action string) (env gen.Environment, err error) {
	resp, err := a.raw.ActOnEnvironmentWithBody(ctx, id, &gen.ActOnEnvironmentParams{Action: action}, "application/json", nil)
	return env, decode(resp, err, &env)
}

// Exec runs one command and waits for it; a non-zero exit is no error. Output
// gives the exact bytes of the result.
func (a *API) Exec(ctx context.Context, id string, req gen.ExecRequest) (res gen.ExecResult, err error) {
	return res, action{a, id, "exec"}.send(ctx, req, &res)
}

// Output returns what a command wrote, byte for byte.
func Output(res gen.ExecResult) (stdout, stderr []byte) {
	stdout, stderr = []byte(res.Stdout), []byte(res.Stderr)
	if res.StdoutB64 != nil {
		stdout = res.StdoutB64
	}
	if res.StderrB64 != nil {
		stderr = res.StderrB64
	}
	return stdout, stderr
}

// StartupLog is the output of a startup script; ExitCode and Truncated are as
// the server recorded them.
type StartupLog struct {
	Output    []byte
	ExitCode  int
	Truncated bool
}

// Logs returns the output of an environment's startup script, also after its
// end.
func (a *API) Logs(ctx context.Context, id string) (StartupLog, error) {
	resp, err := a.raw.GetEnvironmentLogs(ctx, id, &gen.GetEnvironmentLogsParams{Source: new("startup")})
	var out bytes.Buffer
	if err := decode(resp, err, &out); err != nil {
		return StartupLog{}, err
	}
	code, _ := strconv.Atoi(resp.Header.Get("Fuse-Exit-Code"))
	return StartupLog{Output: out.Bytes(), ExitCode: code, Truncated: resp.Header.Get("Fuse-Truncated") == "true"}, nil
}

// RegisterHost registers a host agent.
func (a *API) RegisterHost(ctx context.Context, req gen.RegisterHost) (host gen.HostInfo, err error) {
	resp, err := a.raw.RegisterHost(ctx, &gen.RegisterHostParams{}, req)
	return host, decode(resp, err, &host)
}

// Host returns one host.
func (a *API) Host(ctx context.Context, id string) (host gen.HostInfo, err error) {
	resp, err := a.raw.GetHost(ctx, id)
	return host, decode(resp, err, &host)
}

// Hosts returns one page of hosts.
func (a *API) Hosts(ctx context.Context, params gen.ListHostsParams) (page gen.HostList, err error) {
	resp, err := a.raw.ListHosts(ctx, &params)
	return page, decode(resp, err, &page)
}

// PurgeHost destroys the environments that another fleet left on a host.
func (a *API) PurgeHost(ctx context.Context, id string, req gen.PurgeHost) (done gen.PurgedHost, err error) {
	resp, err := a.raw.PurgeHost(ctx, id, &gen.PurgeHostParams{}, req)
	if err = decode(resp, err, &done); err == nil && (done.Destroyed == nil || done.Failed == nil) {
		done.Destroyed, done.Failed = new(int), new(int)
	}
	return done, err
}

// RemoveHost forgets a host that no environment is on.
func (a *API) RemoveHost(ctx context.Context, id string) error {
	resp, err := a.raw.RemoveHost(ctx, id, &gen.RemoveHostParams{})
	return decode(resp, err, nil)
}

// Cordon stops, and with on false resumes, placing environments on a host.
func (a *API) Cordon(ctx context.Context, id string, on bool) error {
	action := "cordon"
	if !on {
		action = "uncordon"
	}
	resp, err := a.raw.ActOnHostWithBody(ctx, id, &gen.ActOnHostParams{Action: action}, "application/json", nil)
	return decode(resp, err, nil)
}

// Version says what answers at the address.
func (a *API) Version(ctx context.Context) (v gen.Version, err error) {
	resp, err := a.raw.GetVersion(ctx)
	return v, decode(resp, err, &v)
}

// decode closes resp and reads its body into into: a buffer takes it as it is,
// nil drops it, anything else is JSON. An answer without content leaves into.
func decode(resp *http.Response, err error, into any) error {
	if err != nil {
		return plainURLError(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return errorFrom(resp)
	}
	if into == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	body := io.LimitReader(resp.Body, maxAnswer)
	if buf, ok := into.(*bytes.Buffer); ok {
		_, err := buf.ReadFrom(body)
		return err
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return &Error{Status: resp.StatusCode, Message: "this is no Fuse server: " + firstLine(string(raw))}
	}
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// plainURLError drops the method and address that net/http puts before every
// error: the caller knows where it connects.
func plainURLError(err error) error {
	if ue, ok := err.(*url.Error); ok { //nolint:errorlint // only the outermost
		return ue.Unwrap()
	}
	return err
}

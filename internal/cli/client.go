package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxAnswer bounds what is read of one JSON answer: a page of 200 rows and a
// buffered exec both fit with room to spare.
const maxAnswer = 64 << 20

// target says where commands go: flags first, then the environment, then the
// chosen context.
func (a *app) target() (base, token string, err error) {
	base, token, file := a.url, a.token, a.tokenFile
	fromContext, err := a.fromContext()
	if err != nil {
		return "", "", err
	}
	if base == "" && a.contextName == "" {
		base = a.Getenv("FUSE_URL")
	}
	own := base != "" && base != fromContext.BaseURL
	if token == "" && file == "" {
		token, file = a.Getenv("FUSE_TOKEN"), a.Getenv("FUSE_TOKEN_FILE")
	}
	if base == "" {
		base = fromContext.BaseURL
	}
	// A context's token is never sent to another server than its own.
	if token == "" && file == "" && !own {
		token, file = fromContext.Token, fromContext.TokenFile
	}
	if base == "" {
		return "", "", &ExitError{Code: ExitFailed, Err: errors.New(
			"no server is known: start one with 'fuse dev', or name one with --url, FUSE_URL or 'fuse context add'")}
	}
	if token == "" && file != "" {
		data, err := os.ReadFile(file) //nolint:gosec // the user names the file
		if err != nil {
			return "", "", fmt.Errorf("read the API token: %w", err)
		}
		token = strings.TrimSpace(string(data))
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", "", usagef("server URL %q is not of the form http://HOST:PORT or https://HOST:PORT", base)
	}
	return strings.TrimRight(base, "/"), token, nil
}

func (a *app) fromContext() (Context, error) {
	path, err := a.configFile()
	if err != nil {
		return Context{}, err
	}
	c, err := LoadConfig(path)
	if err != nil {
		return Context{}, err
	}
	name := a.contextName
	if name == "" {
		name = c.CurrentContext
	}
	if name == "" {
		return Context{}, nil
	}
	found, ok := c.Find(name)
	if !ok {
		return Context{}, usagef("context %q is not in %s; known: %s", name, path, strings.Join(c.names(), ", "))
	}
	return found, nil
}

func (a *app) configFile() (string, error) {
	if a.configPath != "" {
		return a.configPath, nil
	}
	return DefaultConfigPath()
}

// call is one request to the API.
type call struct {
	method string
	path   string // below the base URL, already escaped
	query  url.Values
	body   any
	header http.Header
}

// send makes the request and returns the answer's stream; the caller closes
// it. An answer of 400 and above comes back as a *fleet.Error.
func (a *app) send(ctx context.Context, c call) (*http.Response, error) {
	base, token, err := a.target()
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if c.body != nil {
		data, err := json.Marshal(c.body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	target := base + c.path
	if len(c.query) > 0 {
		target += "?" + c.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, c.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	maps.Copy(req.Header, c.header)
	if c.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("User-Agent", "fuse-cli/"+a.Version)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // the URL is said once, without its query
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("reach the server at %s: %w\nIs it running? 'fuse dev' starts one; 'fuse context list' shows where commands go", base, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		defer resp.Body.Close()
		return nil, apiError(resp)
	}
	for _, w := range resp.Header.Values("Warning") {
		a.progressf("warning: %s", w)
	}
	return resp, nil
}

// fetch makes the request and decodes a JSON answer into out, returning the
// raw bytes too. out may be nil.
func (a *app) fetch(ctx context.Context, c call, out any) ([]byte, error) {
	resp, err := a.send(ctx, c)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if out == nil || len(raw) == 0 {
		return raw, nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("the answer is not of the Fuse API (is %s a Fuse server?): %w", resp.Request.URL.Host, err)
	}
	return raw, nil
}

// answerError is an API error with what helps to find it in the server's log.
type answerError struct {
	err       *fleet.Error
	status    int
	requestID string
}

func (e *answerError) Error() string { return e.err.Error() }
func (e *answerError) Unwrap() error { return e.err }

func apiError(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) //nolint:errcheck // a cut body still tells something
	var envelope struct {
		Error struct {
			Code    fleet.Code        `json:"code"`
			Message string            `json:"message"`
			Details map[string]string `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(raw, &envelope) != nil || envelope.Error.Code == "" {
		text := strings.TrimSpace(string(raw[:min(len(raw), 300)]))
		return fmt.Errorf("the server answered %s, not in the Fuse format: %s", resp.Status, text)
	}
	return &answerError{
		err:       &fleet.Error{Code: envelope.Error.Code, Message: envelope.Error.Message, Details: envelope.Error.Details},
		status:    resp.StatusCode,
		requestID: resp.Header.Get("X-Request-ID"),
	}
}

// describe renders an error for a person: the message, then its details, then
// the request id. It is empty for an error that has been told already.
func describe(err error) string {
	var exit *ExitError
	if errors.As(err, &exit) && exit.Err == nil {
		return ""
	}
	if errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	var b strings.Builder
	b.WriteString("error: " + err.Error())
	var fe *fleet.Error
	if errors.As(err, &fe) {
		keys := slices.Sorted(maps.Keys(fe.Details))
		// The remedy comes last, where the eye rests.
		slices.SortStableFunc(keys, func(x, y string) int {
			return boolInt(x == fleet.DetailRemedy) - boolInt(y == fleet.DetailRemedy)
		})
		for _, k := range keys {
			fmt.Fprintf(&b, "\n  %s: %s", k, strings.ReplaceAll(fe.Details[k], "\n", "\n    "))
		}
	}
	var ae *answerError
	if errors.As(err, &ae) {
		fmt.Fprintf(&b, "\n  code: %s", ae.err.Code)
		if ae.requestID != "" {
			fmt.Fprintf(&b, " (request %s)", ae.requestID)
		}
	}
	return b.String()
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

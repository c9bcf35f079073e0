// Package join is the host agent's part in joining a fleet by itself: it proves
// a join token to a control plane, checks that the control plane knows it too,
// and remembers that it has joined. The token is not sent, and the agent's own
// token only sealed for whoever made the join token, so neither needs a
// certificate that can be checked.
package join

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire/joinwire"
)

// Config is what a host joins with.
type Config struct {
	Server     string // URL of the control plane
	Token      string // the join token
	AgentToken string // the bearer token of this host's agent
	Host       joinwire.Host
	// Dir keeps the record that this host has joined.
	Dir    string
	Logger *slog.Logger
	// Transport replaces the usual one, in tests.
	Transport http.RoundTripper
}

// Bounds of a join.
const (
	callTime   = 90 * time.Second // the control plane asks back meanwhile
	firstPause = time.Second
	lastPause  = time.Minute
	maxAnswer  = 1 << 20
	recordFile = "joined.json"
)

// record says that this host has joined.
type record struct {
	Server  string    `json:"server"`
	HostID  string    `json:"host_id"`
	TokenID string    `json:"token_id"`
	URL     string    `json:"url"`
	At      time.Time `json:"at"`
}

// Check refuses a configuration that can join nothing, before anything runs.
func (c Config) Check() error {
	if _, err := joinwire.ParseToken(c.Token); err != nil {
		return err
	}
	u, err := url.Parse(c.Server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("the server's URL %.200q is not http://HOST:PORT or https://HOST:PORT", c.Server)
	}
	if !fleet.ValidHostID(c.Host.ID) {
		return fmt.Errorf("the host id %.80q is not allowed: 1 to 63 letters, digits, dots, underscores or dashes, starting with a letter or digit", c.Host.ID)
	}
	return nil
}

// Run joins, and tries again until it is taken in or refused for good: an error
// says that trying again would not help. A host that has joined this server
// with this token and address before has nothing to do.
func Run(ctx context.Context, c Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	token, err := joinwire.ParseToken(c.Token)
	if err != nil {
		return err
	}
	now := record{Server: strings.TrimRight(c.Server, "/"), HostID: c.Host.ID, TokenID: token.ID, URL: c.Host.URL}
	path := filepath.Join(c.Dir, recordFile)
	if before, err := read(path); err == nil && before.same(now) {
		c.Logger.Info("this host has joined already", slog.String("host_id", now.HostID), slog.String("server", now.Server), slog.Time("at", before.At))
		return nil
	}
	client := c.client()
	defer client.CloseIdleConnections()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		answer, err := once(ctx, client, c, token)
		if err == nil {
			for _, w := range answer.Warnings {
				c.Logger.Warn("joined, but "+w, slog.String("host_id", answer.HostID))
			}
			c.Logger.Info("joined", slog.String("host_id", answer.HostID), slog.String("server", now.Server))
			now.At = time.Now().UTC()
			return write(path, now)
		}
		var no *refusal
		if errors.As(err, &no) && no.final() {
			return fmt.Errorf("join %s: %w", now.Server, err)
		}
		c.Logger.Warn("not joined yet", slog.String("server", now.Server), slog.Duration("again_in", pause), slog.Any("error", err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (r record) same(o record) bool {
	return r.Server == o.Server && r.HostID == o.HostID && r.TokenID == o.TokenID && r.URL == o.URL
}

func read(path string) (r record, err error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(doc, &r)
}

func write(path string, r record) error {
	doc, err := json.Marshal(r)
	if err == nil {
		err = durable.WriteFile(path, append(doc, '\n'))
	}
	if err != nil {
		return fmt.Errorf("record that this host has joined: %w", err)
	}
	return nil
}

func (c Config) client() *http.Client {
	rt := c.Transport
	if rt == nil {
		rt = &http.Transport{
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, //nolint:gosec // both sides prove the token over what is said
			TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return &http.Client{
		Transport: rt, Timeout: callTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// once is one try.
func once(ctx context.Context, client *http.Client, c Config, token joinwire.Token) (answer joinwire.Answer, err error) {
	raw := make([]byte, 24) //nolint:mnd // enough never to come again
	if _, err := rand.Read(raw); err != nil {
		return answer, err
	}
	e := joinwire.Exchange{TokenID: token.ID, ClientNonce: base64.RawURLEncoding.EncodeToString(raw)}
	var nonce joinwire.Nonce
	if err := call(ctx, client, strings.TrimRight(c.Server, "/")+joinwire.ChallengePath, joinwire.Challenge{TokenID: e.TokenID, ClientNonce: e.ClientNonce}, &nonce); err != nil {
		return answer, err
	}
	e.ServerNonce = nonce.ServerNonce
	host := c.Host
	if host.SealedToken, err = token.Seal(e.ClientNonce, e.ServerNonce, c.AgentToken); err != nil {
		return answer, err
	}
	if e.Document, err = json.Marshal(host); err != nil {
		return answer, err
	}
	var joined joinwire.Joined
	if err := call(ctx, client, strings.TrimRight(c.Server, "/")+joinwire.JoinPath, joinwire.Join{
		TokenID: e.TokenID, ClientNonce: e.ClientNonce, ServerNonce: e.ServerNonce, Document: e.Document, Proof: token.Prove(e),
	}, &joined); err != nil {
		return answer, err
	}
	if !token.CheckAnswer(e, joined) {
		return answer, errors.New("what answers at the server's URL does not know the join token")
	}
	return answer, json.Unmarshal(joined.Answer, &answer)
}

// refusal is an answer that is not what was asked for.
type refusal struct {
	status  int
	code    string
	message string
	remedy  string
}

func (r *refusal) Error() string {
	text := fmt.Sprintf("%s (status %d, %s)", r.message, r.status, r.code)
	if r.remedy != "" {
		text += "; " + r.remedy
	}
	return text
}

// final reports whether trying again cannot help. A host that the server could
// not reach comes with another code.
func (r *refusal) final() bool {
	switch fleet.Code(r.code) {
	case fleet.CodeInvalidArgument, fleet.CodeUnauthorized, fleet.CodeForbidden, fleet.CodeConflict, fleet.CodeRouteNotFound, fleet.CodeUnimplemented:
		return true
	}
	return false
}

func call(ctx context.Context, client *http.Client, to string, body, into any) error {
	doc, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(doc))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("the server did not answer: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("the server broke off: %w", err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		var envelope struct {
			Error struct {
				Code    string            `json:"code"`
				Message string            `json:"message"`
				Details map[string]string `json:"details"`
			} `json:"error"`
		}
		if err := json.Unmarshal(answer, &envelope); err != nil || envelope.Error.Code == "" {
			return &refusal{status: resp.StatusCode, code: "unknown", message: "what answers at the server's URL is no Fuse server"}
		}
		return &refusal{resp.StatusCode, envelope.Error.Code, envelope.Error.Message, envelope.Error.Details[fleet.DetailRemedy]}
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	return nil
}

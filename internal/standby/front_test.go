package standby

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// node is a server process: a Front behind a real listener.
type node struct {
	front *Front
	http  *httptest.Server
	self  state.Candidate
}

func newNode(t *testing.T, name string, cfg auth.Config, useTLS bool) *node {
	t.Helper()
	n := &node{self: state.Candidate{Name: name, Secret: "secret of " + name}}
	cfg.Token = "tok"
	n.front = NewFront(FrontConfig{
		Self: n.self, Version: "v", Gate: auth.New(cfg), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		MetricsHandler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "figures") }),
	})
	n.http = httptest.NewUnstartedServer(n.front)
	if useTLS {
		n.http.StartTLS()
		n.self.CertSHA256 = Fingerprint(n.http.Certificate().Raw)
	} else {
		n.http.Start()
	}
	n.self.Address = n.http.URL
	t.Cleanup(n.http.Close)
	t.Cleanup(n.front.Stop)
	return n
}

func (n *node) follow(t *testing.T, leader *node, term int64) {
	n.front.Follow(t.Context(), state.LeaseInfo{Candidate: leader.self, Term: term})
}

func (n *node) do(t *testing.T, method, path, body string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, n.http.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := n.http.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Values("X-Request-ID"); len(got) != 1 || got[0] == "" {
		t.Errorf("%s %s: request ids %q", method, path, got)
	}
	return resp.StatusCode, string(raw)
}

// echo is an API that tells what it is asked.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	addr, _ := netip.ParseAddrPort(r.RemoteAddr)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Request-ID", "of the leader")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"uri": r.RequestURI, "method": r.Method, "host": r.Host, "auth": r.Header.Get("Authorization"), "body": string(body),
		"from": addr.Addr().String(), "marks": r.Header.Get(headerProof) + r.Header.Get(headerClient) + r.Header.Get(headerStandby),
	})
}

func TestAStandbyPassesCallsOnUnchanged(t *testing.T) {
	for _, useTLS := range []bool{false, true} {
		leader, other := newNode(t, "a", auth.Config{}, useTLS), newNode(t, "b", auth.Config{}, false)
		reign := leader.front.Lead(http.HandlerFunc(echo))
		other.follow(t, leader, 1)
		status, text := other.do(t, http.MethodPost, "/v1/x/a%2Fb/%20c?q=1&r=%2F", "hello", "Authorization", "Bearer tok")
		var got map[string]string
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusCreated {
			t.Fatalf("%d %s %v", status, text, err)
		}
		want := map[string]string{
			"uri": "/v1/x/a%2Fb/%20c?q=1&r=%2F", "method": "POST", "host": strings.TrimPrefix(other.http.URL, "http://"),
			"auth": "Bearer tok", "body": "hello", "from": "127.0.0.1", "marks": "",
		}
		// What the leader has to refuse must not be gone by the time it is there.
		if _, text := other.do(t, http.MethodDelete, "/v1/x?host=%zz&a;b", ""); !strings.Contains(text, `"/v1/x?host=%zz`) || !strings.Contains(text, "a;b") {
			t.Errorf("TLS %v: a query that cannot be read arrives as %s", useTLS, text)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("TLS %v: %s is %q, want %q", useTLS, k, got[k], v)
			}
		}
		if got := leader.front.Standbys(); len(got) != 1 || got[0] != "b" {
			t.Errorf("the leader knows of %v", got)
		}
		reign.End(t.Context(), errChanging)
	}
}

func TestWhatAStandbyAnswersItself(t *testing.T) {
	leader, other := newNode(t, "a", auth.Config{}, false), newNode(t, "b", auth.Config{}, false)
	other.front.Wait(fleet.Errorf(fleet.CodeUnavailable, "the database is away"))
	check := func(path string, status int, text string, header ...string) {
		t.Helper()
		if got, body := other.do(t, http.MethodGet, path, "", header...); got != status || !strings.Contains(body, text) {
			t.Errorf("GET %s: %d %s, want %d and %q", path, got, body, status, text)
		} else if got == 503 && strings.HasPrefix(path, "/v1/") && !strings.Contains(body, `"remedy":`) {
			t.Errorf("GET %s: %s says nothing of what to do", path, body)
		}
	}
	bearer := []string{"Authorization", "Bearer tok"}
	check("/livez", 200, "ok")
	check("/readyz", 503, "the database is away")
	check("/v1/environments", 503, `"code":"unavailable"`, bearer...)
	other.follow(t, leader, 7)
	check("/health", 200, "ok")
	check("/ready", 503, "standby: a leads, term 7")
	check("/metrics", 401, "unauthorized")
	check("/metrics", 200, "figures", bearer...)
	// The other one leads no more, and knows nobody who does.
	check("/v1/environments", 503, "the server is starting", bearer...)
	leader.http.Close()
	check("/v1/environments", 503, "nothing was done", bearer...)
	other.front.Follow(t.Context(), state.LeaseInfo{Candidate: state.Candidate{Name: "mute"}, Term: 8})
	check("/v1/environments", 503, "--advertise", bearer...)
}

func TestCallsGoRoundNoCircle(t *testing.T) {
	a, b := newNode(t, "a", auth.Config{}, false), newNode(t, "b", auth.Config{}, false)
	a.follow(t, b, 1)
	b.follow(t, a, 1)
	if status, text := a.do(t, http.MethodGet, "/v1/hosts", ""); status != 503 || !strings.Contains(text, "changing its leader") {
		t.Errorf("%d %s", status, text)
	}
}

// TestTheCallersAddressCounts: the standby checks it, and the leader believes it
// of nobody else.
func TestTheCallersAddressCounts(t *testing.T) {
	nobody := auth.Config{AllowedCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	leader, other := newNode(t, "a", auth.Config{}, false), newNode(t, "b", nobody, false)
	reign := leader.front.Lead(http.HandlerFunc(echo))
	defer reign.End(t.Context(), errChanging)
	other.follow(t, leader, 1)
	if status, text := other.do(t, http.MethodGet, "/v1/hosts", ""); status != 403 {
		t.Errorf("refused address: %d %s", status, text)
	}
	h := http.Header{}
	forged := func(secret, uri string) (int, string) {
		sign(h, secret, "b", "192.0.2.7:1", http.MethodGet, uri)
		return leader.do(t, http.MethodGet, "/v1/hosts", "",
			headerStandby, h.Get(headerStandby), headerClient, h.Get(headerClient), headerProof, h.Get(headerProof))
	}
	if _, text := forged("secret of a", "/v1/hosts"); !strings.Contains(text, `"from":"192.0.2.7"`) {
		t.Errorf("with the proof: %s", text)
	}
	for name, c := range map[string][2]string{
		"another secret": {"secret of b", "/v1/hosts"}, "another call": {"secret of a", "/v1/environments"}, "no secret": {"", "/v1/hosts"},
	} {
		if _, text := forged(c[0], c[1]); !strings.Contains(text, `"from":"127.0.0.1"`) || !strings.Contains(text, `"marks":""`) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func TestAnotherCertificateIsNotTrusted(t *testing.T) {
	leader, other := newNode(t, "a", auth.Config{}, true), newNode(t, "b", auth.Config{}, false)
	reign := leader.front.Lead(http.HandlerFunc(echo))
	defer reign.End(t.Context(), errChanging)
	leader.self.CertSHA256 = strings.Repeat("0", 64)
	other.follow(t, leader, 1)
	if status, text := other.do(t, http.MethodGet, "/v1/hosts", "", "Authorization", "Bearer tok"); status != 503 {
		t.Errorf("%d %s", status, text)
	}
}

// stream says "n" on line n until its caller leaves.
func stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for n := 0; ; n++ {
		fmt.Fprintf(w, "data: %d\n\n", n)
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func TestStreamsPassAtOnceAndEndWithTheTerm(t *testing.T) {
	leader, other := newNode(t, "a", auth.Config{}, false), newNode(t, "b", auth.Config{}, false)
	reign := leader.front.Lead(http.HandlerFunc(stream))
	other.follow(t, leader, 1)
	for _, end := range []func(){
		func() { // another one leads: the old leader may be frozen and say nothing
			other.front.Follow(t.Context(), state.LeaseInfo{Candidate: state.Candidate{Name: "c"}, Term: 2})
		},
		func() { reign.End(canceled(t), errChanging) },
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, other.http.URL+"/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := other.http.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for range 20 {
			if !lines.Scan() {
				t.Fatal("the stream ended by itself")
			}
		}
		began := time.Now()
		end()
		for lines.Scan() { // what was under way
		}
		if took := time.Since(began); took > 20*time.Second { // the leader would go on for ever
			t.Errorf("the stream ended after %v", took)
		}
		resp.Body.Close()
		other.follow(t, leader, 3)
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// upgrade takes the connection over and answers every line in capitals.
func upgrade(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "shout")
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		line, err := rw.ReadString('\n')
		if err != nil {
			return
		}
		if _, err := conn.Write([]byte(strings.ToUpper(line))); err != nil {
			return
		}
	}
}

// An answer may take longer than a write may, on either version of HTTP, before
// its first byte and between two. A caller who takes nothing is still let go.
func TestALongAnswerIsNotCut(t *testing.T) {
	const limit = 500 * time.Millisecond
	leader := newNode(t, "a", auth.Config{}, false)
	let, cut := make(chan struct{}), make(chan struct{})
	leader.front.Lead(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-ID", "x")
		switch r.URL.Path {
		case "/livez":
			return
		case "/flood":
			defer close(cut)
			for chunk := make([]byte, 1<<20); r.Context().Err() == nil; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
			return
		}
		for range 2 {
			<-let
			fmt.Fprint(w, "part")
			_ = http.NewResponseController(w).Flush()
		}
	}))
	for _, h2 := range []bool{false, true} {
		front := NewFront(FrontConfig{
			Self: state.Candidate{Name: "b"}, Gate: auth.New(auth.Config{Token: "tok"}), WriteTimeout: limit,
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		srv := httptest.NewUnstartedServer(front)
		srv.Config.WriteTimeout, srv.EnableHTTP2 = limit, h2
		srv.StartTLS()
		t.Cleanup(srv.Close)
		t.Cleanup(front.Stop)
		front.Follow(t.Context(), state.LeaseInfo{Candidate: leader.self, Term: 1})
		// The handshake has as little time; both calls come after it.
		testkit.Eventually(t, time.Minute, "the standby answers", func() bool {
			resp, err := srv.Client().Get(srv.URL + "/livez")
			if err != nil {
				return false
			}
			_, err = io.Copy(io.Discard, resp.Body)
			return errors.Join(err, resp.Body.Close()) == nil
		})
		go func() {
			for range 2 {
				<-time.After(2 * limit)
				let <- struct{}{}
			}
		}()
		resp, err := srv.Client().Get(srv.URL + "/long")
		if err != nil {
			t.Fatalf("HTTP/2 %v: %v", h2, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil || string(body) != "partpart" || (resp.ProtoMajor == 2) != h2 {
			t.Errorf("HTTP/2 %v: %s %q, %v", h2, resp.Proto, body, err)
		}
		if !h2 {
			continue
		}
		resp, err = srv.Client().Get(srv.URL + "/flood")
		if err != nil {
			t.Fatal(err)
		}
		<-cut
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A body that does not come holds no place for ever, whatever the leader says of
// the call; one that has come does not end the call behind it.
func TestABodyHasToCome(t *testing.T) {
	const limit = time.Second // a call has to send its few bytes in that time
	leader := newNode(t, "a", auth.Config{}, false)
	leader.front.Lead(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-ID", "x")
		if r.URL.Path == "/long" {
			_, _ = io.Copy(io.Discard, r.Body)
			<-time.After(3 * limit)
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	front := NewFront(FrontConfig{
		Self: state.Candidate{Name: "b"}, Gate: auth.New(auth.Config{Token: "tok"}), BodyTimeout: limit, MaxCalls: 1,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	srv := httptest.NewServer(front)
	t.Cleanup(srv.Close)
	t.Cleanup(front.Stop)
	front.Follow(t.Context(), state.LeaseInfo{Candidate: leader.self, Term: 1})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 1000\r\n\r\nabc")
	if got, err := io.ReadAll(conn); err != nil || strings.Contains(string(got), "200 OK") {
		t.Errorf("the connection stays, or says that all is well: %q, %v", got, err)
	}
	for _, path := range []string{"/long", "/"} { // the one place is free again
		resp, err := srv.Client().Post(srv.URL+path, "", strings.NewReader("body"))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: answered %d, %v", path, resp.StatusCode, err)
		}
	}
}

func TestAnUpgradePassesThrough(t *testing.T) {
	leader, other := newNode(t, "a", auth.Config{}, true), newNode(t, "b", auth.Config{}, false)
	reign := leader.front.Lead(http.HandlerFunc(upgrade))
	defer reign.End(canceled(t), errChanging)
	other.follow(t, leader, 1)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(other.http.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/x HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n")
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil) //nolint:bodyclose // the connection is closed
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	for range 3 {
		fmt.Fprintln(conn, "hello")
		if line, err := in.ReadString('\n'); line != "HELLO\n" || err != nil {
			t.Fatalf("%q %v", line, err)
		}
	}
	other.front.Wait(errChanging)
	if _, err := in.ReadString('\n'); err == nil {
		t.Error("the connection outlives the leader")
	}
}

func TestTheEndOfATerm(t *testing.T) {
	n := newNode(t, "a", auth.Config{}, false)
	began := make(chan struct{})
	reign := n.front.Lead(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done() // and answers nothing, as a handler whose caller has left
	}))
	type outcome struct {
		status int
		text   string
	}
	got := make(chan outcome)
	go func() {
		status, text := n.do(t, http.MethodPost, "/v1/environments", "{}")
		got <- outcome{status, text}
	}()
	<-began
	if !reign.End(canceled(t), errChanging) {
		t.Error("calls do not end")
	}
	if o := <-got; o.status != 503 || !strings.Contains(o.text, "not known") {
		t.Errorf("a call under way: %+v", o)
	}
	if status, text := n.do(t, http.MethodGet, "/v1/hosts", ""); status != 503 || !strings.Contains(text, "changing its leader") {
		t.Errorf("a call after the end: %d %s", status, text)
	}
}

func TestAStandbyAddsItselfToTheStatus(t *testing.T) {
	leader, other := newNode(t, "a", auth.Config{}, false), newNode(t, "b", auth.Config{}, false)
	reign := leader.front.Lead(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Request-ID", "of the leader")
		fmt.Fprint(w, `{"role":"leader","name":"a"}`)
	}))
	defer reign.End(t.Context(), errChanging)
	other.follow(t, leader, 1)
	_, text := other.do(t, http.MethodGet, "/v1/server", "")
	var doc struct {
		Role, Name string
		By         struct {
			Role, Name string
			Lag        float64 `json:"lag_seconds"`
		} `json:"answered_by"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc.Role != "leader" || doc.By.Role != "standby" || doc.By.Name != "b" || doc.By.Lag > 60 {
		t.Errorf("%s %v", text, err)
	}
}

func TestAStandbyIsBounded(t *testing.T) {
	leader, other := newNode(t, "a", auth.Config{}, false), newNode(t, "b", auth.Config{}, false)
	reign := leader.front.Lead(http.HandlerFunc(echo))
	defer reign.End(t.Context(), errChanging)
	other.follow(t, leader, 1)
	for range cap(other.front.slots) {
		other.front.slots <- struct{}{}
	}
	if status, text := other.do(t, http.MethodGet, "/v1/hosts", ""); status != 503 || !strings.Contains(text, fmt.Sprint(DefaultMaxCalls)) {
		t.Errorf("%d %s", status, text)
	}
}

// TestALeaderThatDiesIsNoticed: the answer of a call that went out is lost.
func TestALeaderThatDiesIsNoticed(t *testing.T) {
	other := newNode(t, "b", auth.Config{}, false)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			_, _ = bufio.NewReader(c).ReadString('\n')
			c.Close()
		}
	}()
	other.front.Follow(t.Context(), state.LeaseInfo{Candidate: state.Candidate{Name: "a", Address: "http://" + l.Addr().String()}, Term: 1})
	status, text := other.do(t, http.MethodPost, "/v1/environments", "{}")
	if status != 503 || !strings.Contains(text, "not known") || !strings.Contains(text, "Idempotency-Key") {
		t.Errorf("%d %s", status, text)
	}
	testkit.Eventually(t, time.Minute, "the leader counts as down", func() bool { return other.front.part.Load().leader.down.Load() != nil })
}

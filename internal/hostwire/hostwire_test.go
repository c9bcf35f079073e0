package hostwire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// failing answers every lookup with one error.
type failing struct {
	hostwirev1connect.UnimplementedVMHandler
	err error
}

func (f failing) GetVM(context.Context, *connect.Request[hostwirev1.GetVMRequest]) (*connect.Response[hostwirev1.GetVMResponse], error) {
	return nil, hostwire.ToConnect(f.err)
}

// over sends err over a real connection and returns what the other side makes
// of it.
func over(t *testing.T, err error) (*fleet.Error, bool) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(hostwirev1connect.NewVMHandler(failing{err: err}))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	_, got := hostwirev1connect.NewVMClient(srv.Client(), srv.URL).GetVM(t.Context(), connect.NewRequest(&hostwirev1.GetVMRequest{}))
	return hostwire.FromConnect(got)
}

func TestErrorsSurviveTheWire(t *testing.T) {
	full := fleet.Errorf(fleet.CodeUnavailable, "%w: \u00fcber alles\n\"x\"", fleet.ErrNoCapacity).
		With(fleet.DetailLimit, "3").With(fleet.DetailRemedy, "destroy some").With("odd key", "\t")
	for name, test := range map[string]struct {
		err      error
		code     fleet.Code
		message  string
		details  map[string]string
		sentinel error
	}{
		"everything": {full, fleet.CodeUnavailable, full.Message, full.Details, fleet.ErrNoCapacity},
		"wrapped":    {fmt.Errorf("outer: %w", full), fleet.CodeUnavailable, full.Message, full.Details, fleet.ErrNoCapacity},
		"hidden cause": {
			fleet.Wrap(fleet.CodeConflict, fmt.Errorf("secret path: %w", fleet.ErrStaleTerm), "another one leads"),
			fleet.CodeConflict, "another one leads", nil, fleet.ErrStaleTerm,
		},
		"plain":     {errors.New("open /very/secret: no"), fleet.CodeInternal, "internal error of the host agent", nil, nil},
		"unclaimed": {fleet.Errorf(fleet.CodeConflict, "%w", hostwire.ErrUnclaimed), fleet.CodeConflict, "term not claimed at the host", nil, hostwire.ErrUnclaimed},
	} {
		t.Run(name, func(t *testing.T) {
			got, answered := over(t, test.err)
			if !answered {
				t.Fatalf("not recognized as the host's answer: %v", got)
			}
			if got.Code != test.code || got.Message != test.message || got.Error() != test.message {
				t.Errorf("got %s %q (%q)", got.Code, got.Message, got.Error())
			}
			if diff := cmp.Diff(test.details, got.Details); diff != "" {
				t.Errorf("details (-want +got):\n%s", diff)
			}
			if test.sentinel != nil && !errors.Is(got, test.sentinel) {
				t.Errorf("it is no %v any more", test.sentinel)
			}
		})
	}
}

func TestEveryCodeSurvives(t *testing.T) {
	for _, code := range []fleet.Code{
		fleet.CodeInvalidArgument, fleet.CodeUnauthorized, fleet.CodeForbidden, fleet.CodeNotFound, fleet.CodeRouteNotFound,
		fleet.CodeMethodNotAllowed, fleet.CodeConflict, fleet.CodePayloadTooLarge, fleet.CodeLocked, fleet.CodeUnimplemented,
		fleet.CodeUnavailable, fleet.CodeDeadlineExceeded, fleet.CodeInternal, "a_code_of_a_newer_host",
	} {
		if got, answered := over(t, fleet.Errorf(code, "m")); !answered || got.Code != code {
			t.Errorf("%s became %s, answered %v", code, got.Code, answered)
		}
	}
}

func TestBrokenCallsAreNoAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		err      error
		code     fleet.Code
		answered bool
	}{
		"no connection": {connect.NewError(connect.CodeUnavailable, errors.New("dial")), fleet.CodeUnavailable, false},
		"too late":      {connect.NewError(connect.CodeDeadlineExceeded, errors.New("late")), fleet.CodeDeadlineExceeded, false},
		"own deadline":  {context.DeadlineExceeded, fleet.CodeDeadlineExceeded, false},
		"too large":     {connect.NewError(connect.CodeResourceExhausted, errors.New("size")), fleet.CodePayloadTooLarge, false},
		"no handler":    {connect.NewError(connect.CodeInternal, errors.New("x")), fleet.CodeUnavailable, false},
		"refused token": {connect.NewError(connect.CodeUnauthenticated, errors.New("401")), fleet.CodeUnavailable, true},
		"not connect":   {errors.New("x"), fleet.CodeUnavailable, false},
	} {
		if got, answered := hostwire.FromConnect(test.err); got.Code != test.code || answered != test.answered {
			t.Errorf("%s: %s, answered %v", name, got.Code, answered)
		}
	}
}

func TestConversionsKeepEveryField(t *testing.T) {
	facts := fleet.HostFacts{}
	fill(t, reflect.ValueOf(&facts).Elem())
	if diff := cmp.Diff(facts, hostwire.FactsFromWire(hostwire.FactsToWire(facts))); diff != "" {
		t.Errorf("facts:\n%s", diff)
	}
	capacity := fleet.HostCapacity{CPUs: 1, RamMB: 2, StorageGB: 3, VMCount: 4, HugePages: 5, Arch: "amd64"}
	if diff := cmp.Diff(capacity, hostwire.CapacityFromWire(hostwire.CapacityToWire(capacity))); diff != "" {
		t.Errorf("capacity:\n%s", diff)
	}
	vm := fleet.ObservedVM{ID: "i", UID: "u", Generation: 3, Exit: &fleet.ExitRecord{
		UID: "u", VMID: "i", Cause: "c", Detail: "d", At: time.UnixMilli(1234567).UTC(),
	}}
	if diff := cmp.Diff(vm, hostwire.VMFromWire(hostwire.VMToWire(vm))); diff != "" {
		t.Errorf("vm:\n%s", diff)
	}
	status := fleet.ExecStatus{ExitCode: 137, Signal: "KILL", TimedOut: true}
	if got := hostwire.StatusFromWire(hostwire.StatusToWire(status)); got != status {
		t.Errorf("status: %+v", got)
	}
	boot := fleet.BootRecord{Mode: fleet.BootGolden, Steps: []fleet.StepTime{{Step: "a", Took: 1500 * time.Microsecond}, {Step: "b"}}}
	digest, got := hostwire.BootFromWire(hostwire.BootToWire("sha256:x", boot))
	if diff := cmp.Diff(boot, got); diff != "" || digest != "sha256:x" {
		t.Errorf("boot: %s\n%s", digest, diff)
	}
	files := []fleet.GuestFile{{Path: "/a", Data: []byte{0, 255}, Mode: 0o755}, {Path: "/b"}}
	if diff := cmp.Diff(files, hostwire.FilesFromWire(hostwire.FilesToWire(files))); diff != "" {
		t.Errorf("files:\n%s", diff)
	}
}

// fill gives every field of a struct a value, so that a forgotten one shows.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("s" + v.Type().Field(i).Name)
		case reflect.Int:
			f.SetInt(int64(i + 1))
		case reflect.Float64:
			f.SetFloat(float64(i) + 0.5)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"x", "y"}))
		default:
			t.Fatalf("no value for %s", v.Type().Field(i).Name)
		}
	}
}

func TestVersions(t *testing.T) {
	own := hostwire.Own("1.2")
	for header, want := range map[string]int{"0": 0, "1": 1, "2": 1, "3": -1, "-1": -1, "": -1, "x": -1} {
		other := hostwire.Peer{Wire: header, Release: "9.9"}
		v, err := hostwire.Meet(own, other)
		if want >= 0 {
			if err != nil || v != want {
				t.Errorf("%q: %d, %v", header, v, err)
			}
			continue
		}
		if !errors.Is(err, hostwire.ErrUnsupported) || fleet.CodeOf(err) != fleet.CodeUnimplemented {
			t.Errorf("%q: %v", header, err)
		}
		for _, named := range []string{"9.9", "1.2", own.Wire} {
			if !strings.Contains(err.Error(), named) {
				t.Errorf("%q: %v does not name %s", header, err, named)
			}
		}
	}
}

func TestGuard(t *testing.T) {
	reached := 0
	h := hostwire.Guard("the-right-token", "0.9", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	for name, test := range map[string]struct {
		authorization, version string
		status                 int
	}{
		"right":         {"Bearer the-right-token", "1", http.StatusOK},
		"none":          {"", "1", http.StatusUnauthorized},
		"wrong":         {"Bearer the-wrong-token", "1", http.StatusUnauthorized},
		"longer":        {"Bearer the-right-token-", "1", http.StatusUnauthorized},
		"empty":         {"Bearer ", "1", http.StatusUnauthorized},
		"no scheme":     {"the-right-token", "1", http.StatusUnauthorized},
		"newer by two":  {"Bearer the-right-token", "3", http.StatusNotImplemented},
		"without a one": {"Bearer the-right-token", "", http.StatusNotImplemented},
	} {
		before := reached
		r := httptest.NewRequest(http.MethodPost, "/fuse.host.v1.VM/ListVMs", nil)
		r.Header.Set("Authorization", test.authorization)
		r.Header.Set(hostwire.VersionHeader, test.version)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.status || (reached > before) != (test.status == http.StatusOK) {
			t.Errorf("%s: status %d, reached %v", name, w.Code, reached > before)
		}
		if strings.Contains(w.Body.String(), "token") && test.status == http.StatusUnauthorized {
			t.Errorf("%s: %q", name, w.Body)
		}
	}
}

// serve runs a server until the test ends.
func serve(t *testing.T, cfg hostwire.ServerConfig) *hostwire.Server {
	t.Helper()
	if cfg.Handler == nil {
		cfg.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) })
	}
	srv, err := hostwire.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return srv
}

func get(t *testing.T, cfg hostwire.ClientConfig) (string, error) {
	t.Helper()
	tr, base, err := hostwire.NewTransport(cfg)
	if err != nil {
		return "", err
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestTransportsSpeakHTTP2(t *testing.T) {
	dir := t.TempDir()
	for _, addr := range []string{"unix://" + dir + "/s", "127.0.0.1:0", "http://localhost:0", "https://127.0.0.1:0", "0.0.0.0:0"} {
		srv := serve(t, hostwire.ServerConfig{Addr: addr, CertDir: filepath.Join(dir, "tls")})
		secure := addr[0] == '0' || strings.HasPrefix(addr, "https")
		if (srv.CertSHA256() != "") != secure || strings.HasPrefix(srv.URL(), "https") != secure {
			t.Errorf("%s: url %s, certificate %q", addr, srv.URL(), srv.CertSHA256())
		}
		body, err := get(t, hostwire.ClientConfig{URL: srv.URL(), CertSHA256: srv.CertSHA256()})
		if err != nil || body != "HTTP/2.0" {
			t.Errorf("%s: %q, %v", addr, body, err)
		}
	}
}

func TestPin(t *testing.T) {
	dir := t.TempDir()
	srv := serve(t, hostwire.ServerConfig{Addr: "https://127.0.0.1:0", CertDir: dir})
	again := serve(t, hostwire.ServerConfig{Addr: "https://127.0.0.1:0", CertDir: dir})
	if srv.CertSHA256() != again.CertSHA256() {
		t.Error("a restart made another certificate")
	}
	if info, err := os.Stat(filepath.Join(dir, "key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is %v, %v", info.Mode(), err)
	}
	other := serve(t, hostwire.ServerConfig{Addr: "https://127.0.0.1:0", CertDir: t.TempDir()})
	pin := srv.CertSHA256()
	for name, test := range map[string]struct {
		cfg hostwire.ClientConfig
		ok  bool
	}{
		"right":        {hostwire.ClientConfig{URL: srv.URL(), CertSHA256: pin}, true},
		"other form":   {hostwire.ClientConfig{URL: srv.URL(), CertSHA256: strings.ToUpper(pin[:2]) + ":" + pin[2:]}, true},
		"wrong":        {hostwire.ClientConfig{URL: other.URL(), CertSHA256: pin}, false},
		"none":         {hostwire.ClientConfig{URL: srv.URL()}, false},
		"not a digest": {hostwire.ClientConfig{URL: srv.URL(), CertSHA256: "abc"}, false},
	} {
		if _, err := get(t, test.cfg); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusedAddresses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for addr, code := range map[string]fleet.Code{
		"http://0.0.0.0:0":                    fleet.CodeInvalidArgument,
		"http://192.0.2.1:80":                 fleet.CodeInvalidArgument,
		"ftp://127.0.0.1:0":                   fleet.CodeInvalidArgument,
		"127.0.0.1":                           fleet.CodeInvalidArgument,
		"unix://":                             fleet.CodeInvalidArgument,
		"unix:///" + strings.Repeat("x", 120): fleet.CodeInvalidArgument,
		"unix://" + file:                      fleet.CodeConflict,
		"unix://" + taken:                     fleet.CodeConflict,
	} {
		if _, err := hostwire.Listen(hostwire.ServerConfig{Addr: addr}); fleet.CodeOf(err) != code {
			t.Errorf("listen on %.40s: %v", addr, err)
		}
	}
	for _, url := range []string{
		"http://192.0.2.1:80", "ftp://h", "unix://", "https://h#f", "https://u:secret@h", "h:80", "", "https://h?q=1",
	} {
		_, _, err := hostwire.NewTransport(hostwire.ClientConfig{URL: url})
		if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("client of %q: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	srv := serve(t, hostwire.ServerConfig{Addr: "unix://" + path})
	if body, err := get(t, hostwire.ClientConfig{URL: srv.URL()}); err != nil || body != "HTTP/2.0" {
		t.Errorf("%q, %v", body, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
}

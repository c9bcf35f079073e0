package hosts

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

var (
	errRefused = fleet.Wrap(fleet.CodeUnavailable, provider.ErrUnauthorized, "the host refused the token")
	errAway    = fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "the host did not answer")
	full       = fleet.HostCapacity{CPUs: 2, RamMB: 2048, StorageGB: 10, VMCount: 3, Arch: "amd64"}
)

func TestRegisterTakesWhatTheAgentSays(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	want := fleet.HostCapacity{CPUs: 4, RamMB: 8192, StorageGB: 100, VMCount: 32, Arch: "amd64"}
	if diff := cmp.Diff(want, h.Capacity); diff != "" {
		t.Error(diff)
	}
	if h.State != fleet.HostActive || h.Backend != fleet.BackendSim || h.Facts.RegistryID != "reg1" || h.Owner != "k1" || h.CreatedAt.IsZero() || len(h.Warnings) > 0 {
		t.Errorf("got %+v", h)
	}
	if strings.Contains(string(h.TokenSealed), "secret") {
		t.Error("the token is stored in clear")
	}
	if diff := cmp.Diff([]string{fleet.EventHostRegistered}, f.events(t)); diff != "" {
		t.Error(diff)
	}
	if s := f.svc.Sighting("local"); !s.LastSeen.Equal(h.UpdatedAt) {
		t.Errorf("sighting %+v", s)
	}
}

func TestRegisterDeclaredWins(t *testing.T) {
	f := setup(t)
	h := f.register(t, func(r *RegisterRequest) { r.Capacity = fleet.HostCapacity{CPUs: 2, VMCount: 7} })
	want := fleet.HostCapacity{CPUs: 2, RamMB: 8192, StorageGB: 100, VMCount: 7, Arch: "amd64"}
	if diff := cmp.Diff(want, h.Capacity); diff != "" {
		t.Error(diff)
	}
	if len(h.Warnings) != 1 || !strings.Contains(h.Warnings[0], "declared 2") || !strings.Contains(h.Warnings[0], "reports 4") {
		t.Errorf("warnings %q", h.Warnings)
	}
}

func TestRegisterRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*RegisterRequest)
		agent  func(*agent)
		code   fleet.Code
		probe  bool   // the agent's fault
		scope  string // the field
	}{
		"bad id":              {change: func(r *RegisterRequest) { r.ID = "a/b" }, code: fleet.CodeInvalidArgument, scope: "id"},
		"bad region":          {change: func(r *RegisterRequest) { r.Region = "a b" }, code: fleet.CodeInvalidArgument, scope: "region"},
		"bad label":           {change: func(r *RegisterRequest) { r.Labels = map[string]string{"a": "-"} }, code: fleet.CodeInvalidArgument, scope: "labels"},
		"token with a break":  {change: func(r *RegisterRequest) { r.Token = "a\nb" }, code: fleet.CodeInvalidArgument, scope: "token"},
		"bad fingerprint":     {change: func(r *RegisterRequest) { r.CertSHA256 = "abc" }, code: fleet.CodeInvalidArgument, scope: "cert_sha256"},
		"negative cpus":       {change: func(r *RegisterRequest) { r.Capacity.CPUs = -1 }, code: fleet.CodeInvalidArgument, scope: "capacity.cpus"},
		"absurd memory":       {change: func(r *RegisterRequest) { r.Capacity.RamMB = 1 << 40 }, code: fleet.CodeInvalidArgument, scope: "capacity.ram_mb"},
		"unknown arch":        {change: func(r *RegisterRequest) { r.Capacity.Arch = "vax" }, code: fleet.CodeInvalidArgument, scope: "capacity.arch"},
		"unknown backend":     {change: func(r *RegisterRequest) { r.Backend = "xen" }, code: fleet.CodeInvalidArgument, scope: "backend"},
		"gpus without qemu":   {change: func(r *RegisterRequest) { r.Capacity.GPUs = 1 }, code: fleet.CodeInvalidArgument, scope: "capacity.gpus"},
		"another arch":        {change: func(r *RegisterRequest) { r.Capacity.Arch = "aarch64" }, code: fleet.CodeInvalidArgument, scope: "capacity.arch"},
		"another backend":     {change: func(r *RegisterRequest) { r.Backend = fleet.BackendQEMU }, code: fleet.CodeInvalidArgument, scope: "backend"},
		"refused token":       {agent: func(a *agent) { a.err = errRefused }, code: fleet.CodeUnauthorized, probe: true},
		"away and incomplete": {agent: func(a *agent) { a.err = errAway }, code: fleet.CodeUnavailable, probe: true},
		"no registry":         {agent: func(a *agent) { a.facts.RegistryID = "" }, code: fleet.CodeUnavailable, probe: true},
		"agent without disk":  {agent: func(a *agent) { a.capacity.StorageGB = 0 }, code: fleet.CodeInvalidArgument, scope: "capacity.storage_gb"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			if tt.agent != nil {
				tt.agent(f.agent)
			}
			_, err := f.svc.Register(t.Context(), request(tt.change))
			var fe *fleet.Error
			var probe *ProbeError
			if !errors.As(err, &fe) || fe.Code != tt.code || errors.As(err, &probe) != tt.probe || fe.Details[fleet.DetailScope] != tt.scope || fe.Details[fleet.DetailRemedy] == "" {
				t.Fatalf("got %v %+v", err, fe)
			}
			if strings.Contains(err.Error(), "secret token") {
				t.Errorf("the token shows in %v", err)
			}
			if _, err := f.svc.Get("local"); fleet.CodeOf(err) != fleet.CodeNotFound || !errors.Is(err, fleet.ErrHostNotFound) {
				t.Errorf("the host is there: %v", err)
			}
		})
	}
}

// What is wrong with the way to an agent is told, and what helps.
func TestRegisterSaysWhyAnAgentIsNotAsked(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		says   string
		remedy string
	}{
		"away": {errAway, "capacity.cpus, capacity.ram_mb, capacity.storage_gb, capacity.vm_count: the host did not answer", "check that fuse hostd runs"},
		"other certificate": {
			fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "the host shows the certificate ab").With(fleet.DetailRemedy, "compare the two"),
			"capacity.vm_count: the host shows the certificate ab", "compare the two",
		},
	} {
		f := setup(t)
		f.agent.err = tt.err
		_, err := f.svc.Register(t.Context(), request(nil))
		var e *fleet.Error
		if !errors.As(err, &e) || !strings.HasSuffix(e.Message, tt.says) || !strings.HasPrefix(e.Details[fleet.DetailRemedy], tt.remedy) {
			t.Errorf("%s: %v, %v", name, err, e)
		}
	}
}

func TestRegisterURLs(t *testing.T) {
	for url, ok := range map[string]bool{
		"unix:///run/fuse/host.sock": true, "http://127.0.0.1:8081": true, "http://[::1]:8081": true, "http://localhost:1/prefix": true,
		"https://h.example:8443": true, "https://h.example": true, "https://10.0.0.5:65535/a/": true,
		"": false, "h:1": false, "ftp://h": false, "unix://run/x": false, "unix:///a/../b": false, "unix:///": false, "unix:/a": false,
		"http://10.0.0.5:8081": false, "http://h.example": false, "https://": false, "https://h:0": false, "https://h:65536": false, "https://h:": false,
		"https://u:p@h:1": false, "https://u@h": false, "https://h?a=b": false, "https://h?": false, "https://h#f": false, "https://h#": false, "https:h:1": false,
		"https://h:x": false, "https://" + strings.Repeat("a", 3000): false,
	} {
		r := request(func(r *RegisterRequest) { r.URL = url })
		if err := r.validate(); (err == nil) != ok {
			t.Errorf("%.60q: %v, want ok %v", url, err, ok)
		}
	}
}

func TestRegisterUnseen(t *testing.T) {
	f := setup(t)
	f.agent.err = errAway
	h := f.register(t, func(r *RegisterRequest) { r.Capacity = full })
	if h.Backend != "" || len(h.Warnings) != 1 || !strings.Contains(h.Warnings[0], "unverified") || h.Facts.RegistryID != "" || h.Capacity.VMCount != 3 {
		t.Errorf("got %+v", h)
	}
	// Its identity is pinned at its first answer, which also names its backend.
	f.agent.err = nil
	if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Complete {
		t.Errorf("look: %v %s", obs.Quality(), obs.Reason())
	}
	if h, err := f.svc.Get("local"); err != nil || h.Facts.RegistryID != "reg1" || h.Backend != fleet.BackendSim {
		t.Errorf("got %+v, %v", h, err)
	}
	// From then on its calls are for that registry only.
	if _, err := f.svc.Provider("local"); err != nil || !strings.HasSuffix(f.agent.opened[len(f.agent.opened)-1], " reg1") {
		t.Errorf("opened %q, %v", f.agent.opened, err)
	}
}

func TestRegisterAgain(t *testing.T) {
	f := setup(t)
	first := f.register(t, func(r *RegisterRequest) { r.Labels = map[string]string{"a": "b"} })
	f.update(t, func(tx *state.Tx) error { return putVM(tx, "fuse-t", "u1") })
	if err := f.svc.Cordon(t.Context(), "local", "user:a"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Provider("local"); err != nil {
		t.Fatal(err)
	}
	again := f.register(t, func(r *RegisterRequest) {
		r.URL, r.Token, r.Owner, r.Capacity.CPUs = "unix:///run/new.sock", "new token", "k2", 3
	})
	if again.State != fleet.HostCordoned || !again.CreatedAt.Equal(first.CreatedAt) || again.Owner != "k1" {
		t.Errorf("a new registration reset %+v", again)
	}
	if again.URL != "unix:///run/new.sock" || again.Capacity.CPUs != 3 || len(again.Labels) != 0 || again.Allocated.VMCount != 1 {
		t.Errorf("a new registration did not refresh %+v", again)
	}
	if _, err := f.svc.Provider("local"); err != nil {
		t.Fatal(err)
	}
	if last := f.agent.opened[len(f.agent.opened)-1]; last != "unix:///run/new.sock new token reg1" {
		t.Errorf("the provider still goes to %s", last)
	}
	// Unreachable now: what was known of it stays.
	f.agent.err = errAway
	if h := f.register(t, func(r *RegisterRequest) { r.Capacity, r.Capacity.Arch = full, "" }); h.Facts.RegistryID != "reg1" || h.Backend != fleet.BackendSim || h.Capacity.Arch != fleet.ArchAMD64 {
		t.Errorf("what the agent had said was forgotten: %+v", h)
	}
}

func TestRegisterRefusesTwins(t *testing.T) {
	f := setup(t)
	f.register(t, nil)
	_, err := f.svc.Register(t.Context(), request(func(r *RegisterRequest) { r.ID = "other" }))
	if fleet.CodeOf(err) != fleet.CodeConflict || !strings.Contains(err.Error(), "local") {
		t.Errorf("the same agent under another id: %v", err)
	}
	for what, change := range map[string]func(*fleet.HostFacts){
		"registry": func(x *fleet.HostFacts) { x.RegistryID = "reg2" },
		"machine":  func(x *fleet.HostFacts) { x.MachineID = "m2" },
	} {
		f.agent.facts = fleet.HostFacts{RegistryID: "reg1", MachineID: "m1"}
		change(&f.agent.facts)
		if _, err := f.svc.Register(t.Context(), request(nil)); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("another %s under the same id: %v", what, err)
		}
	}
}

func TestRemove(t *testing.T) {
	f := setup(t)
	f.register(t, nil)
	if _, err := f.svc.Provider("local"); err != nil {
		t.Fatal(err)
	}
	f.update(t, func(tx *state.Tx) error { return errors.Join(putVM(tx, "fuse-a", "u1"), putVM(tx, "fuse-b", "u2")) })
	err := f.svc.Remove(t.Context(), "local", "user:a")
	if fleet.CodeOf(err) != fleet.CodeConflict || !errors.Is(err, fleet.ErrHostHasVMs) || !strings.Contains(err.Error(), "2") || !strings.Contains(err.Error(), "fuse-a") {
		t.Errorf("occupied: %v", err)
	}
	f.update(t, func(tx *state.Tx) error { return errors.Join(tx.DeleteVM("fuse-a"), tx.DeleteVM("fuse-b")) })
	if err := f.svc.Remove(t.Context(), "local", "user:a"); err != nil {
		t.Fatal(err)
	}
	if f.agent.closed != 2 {
		t.Errorf("%d providers were closed, want that of the probe and that of the host", f.agent.closed)
	}
	if err := f.svc.Remove(t.Context(), "local", "user:a"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("again: %v", err)
	}
	if _, err := f.svc.Provider("local"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("its provider: %v", err)
	}
}

func TestCordon(t *testing.T) {
	f := setup(t)
	f.register(t, nil)
	for _, verb := range []func() error{
		func() error { return f.svc.Cordon(t.Context(), "local", "user:a") },
		func() error { return f.svc.Cordon(t.Context(), "local", "user:a") },
		func() error { return f.svc.Uncordon(t.Context(), "local", "user:a") },
	} {
		if err := verb(); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{fleet.EventHostRegistered, fleet.EventHostCordoned, fleet.EventHostUncordoned}
	if diff := cmp.Diff(want, f.events(t)); diff != "" {
		t.Error(diff)
	}
	if err := f.svc.Cordon(t.Context(), "x", "user:a"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("unknown: %v", err)
	}
}

func TestList(t *testing.T) {
	f := setup(t)
	f.update(t, func(tx *state.Tx) error {
		return errors.Join(tx.PutHost(fleet.Host{ID: "a"}), tx.PutHost(fleet.Host{ID: "b"}), tx.PutHost(fleet.Host{ID: "c"}))
	})
	var got []string
	for after, more := "", true; more; {
		page, m, err := f.svc.List(after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range page {
			got = append(got, h.ID)
		}
		after, more = got[len(got)-1], m
		got = append(got, "|")
	}
	if !slices.Equal(got, []string{"a", "b", "|", "c", "|"}) {
		t.Errorf("pages %v", got)
	}
}

// What a machine says of itself must not move a host: with a token to join, an
// id could be taken over by whoever knows what its agent says.
func TestRegisterPinned(t *testing.T) {
	f := setup(t)
	a, b := strings.Repeat("aa", 32), strings.Repeat("bb", 32)
	f.register(t, func(r *RegisterRequest) { r.URL, r.CertSHA256, r.Pinned = "https://h:1", a, true })
	again := func(url, cert string) error {
		_, err := f.svc.Register(t.Context(), RegisterRequest{ID: "local", Owner: "k1", Actor: "user:a", URL: url, Token: "t", CertSHA256: cert, Capacity: full, Pinned: true})
		return err
	}
	if err := again("https://elsewhere:1", b); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("another certificate: %v", err)
	}
	if err := again("https://elsewhere:1", a); err != nil {
		t.Errorf("the same holder at another address: %v", err)
	}
	if h := f.register(t, func(r *RegisterRequest) { r.URL, r.CertSHA256 = "https://h:1", b }); h.CertSHA256 != b {
		t.Errorf("an operator's registration: %+v", h)
	}
}

package lifecycle

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle/uploads"
)

func testRules() rules {
	return rules{
		limits:   DefaultLimits(),
		defaults: Defaults{CPUs: 1, RamMB: 512, StorageGB: 4},
		hostIDs:  func(id string) bool { return id == "local" },
	}
}

func with(change func(*CreateRequest)) CreateRequest {
	req := CreateRequest{TaskID: "t"}
	change(&req)
	return req
}

func probed(h fleet.HealthcheckSpec) CreateRequest {
	return with(func(r *CreateRequest) { r.Boot.Healthcheck = &h })
}

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("k%d", i)] = "v"
	}
	return m
}

func TestValidateRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		req   CreateRequest
		code  fleet.Code
		scope string
		is    error
	}{
		"task id with a slash":     {req: with(func(r *CreateRequest) { r.TaskID = "../../x y" }), code: fleet.CodeInvalidArgument},
		"task id of 101":           {req: with(func(r *CreateRequest) { r.TaskID = strings.Repeat("a", 101) }), code: fleet.CodeInvalidArgument},
		"negative cpus":            {req: with(func(r *CreateRequest) { r.Spec.CPUs = -1 }), code: fleet.CodeInvalidArgument, scope: "spec.cpus"},
		"absurd cpus":              {req: with(func(r *CreateRequest) { r.Spec.CPUs = 1 << 20 }), code: fleet.CodeInvalidArgument, scope: "spec.cpus"},
		"negative ram":             {req: with(func(r *CreateRequest) { r.Spec.RamMB = -512 }), code: fleet.CodeInvalidArgument, scope: "spec.ram_mb"},
		"ram too small to boot":    {req: with(func(r *CreateRequest) { r.Spec.RamMB = 8 }), code: fleet.CodeInvalidArgument, scope: "spec.ram_mb"},
		"negative storage":         {req: with(func(r *CreateRequest) { r.Spec.StorageGB = -1 }), code: fleet.CodeInvalidArgument, scope: "spec.storage_gb"},
		"absurd storage":           {req: with(func(r *CreateRequest) { r.Spec.StorageGB = 1 << 30 }), code: fleet.CodeInvalidArgument, scope: "spec.storage_gb"},
		"unknown architecture":     {req: with(func(r *CreateRequest) { r.Spec.Arch = "SPARC" }), code: fleet.CodeInvalidArgument, scope: "spec.arch"},
		"region with a space":      {req: with(func(r *CreateRequest) { r.Spec.Region = "a b" }), code: fleet.CodeInvalidArgument, scope: "spec.region"},
		"image with a space":       {req: with(func(r *CreateRequest) { r.Spec.Image = "a b" }), code: fleet.CodeInvalidArgument, scope: "spec.image"},
		"negative gpus":            {req: with(func(r *CreateRequest) { r.Spec.GPUs = -1 }), code: fleet.CodeInvalidArgument, scope: "spec.gpus"},
		"gpus":                     {req: with(func(r *CreateRequest) { r.Spec.GPUs = 1 }), code: fleet.CodeUnimplemented, scope: "spec.gpus"},
		"gpu kind":                 {req: with(func(r *CreateRequest) { r.Spec.GPUKind = "a100" }), code: fleet.CodeUnimplemented, scope: "spec.gpu_kind"},
		"gpu profile":              {req: with(func(r *CreateRequest) { r.Spec.GPUProfile = "1g.5gb" }), code: fleet.CodeUnimplemented, scope: "spec.gpu_profile"},
		"label key":                {req: with(func(r *CreateRequest) { r.Spec.Labels = map[string]string{"-a": "b"} }), code: fleet.CodeInvalidArgument, scope: "spec.labels"},
		"label value":              {req: with(func(r *CreateRequest) { r.Spec.Labels = map[string]string{"a": ""} }), code: fleet.CodeInvalidArgument, scope: "spec.labels"},
		"too many labels":          {req: with(func(r *CreateRequest) { r.Spec.Labels = many(65) }), code: fleet.CodeInvalidArgument, scope: "spec.labels"},
		"unknown host":             {req: with(func(r *CreateRequest) { r.Spec.HostID = "other" }), code: fleet.CodeNotFound, scope: "spec.host_id", is: fleet.ErrHostNotFound},
		"negative max runtime":     {req: with(func(r *CreateRequest) { r.Spec.MaxRuntime = -1 }), code: fleet.CodeInvalidArgument, scope: "spec.max_runtime_seconds"},
		"idle timeout under 60 s":  {req: with(func(r *CreateRequest) { r.Spec.IdleTimeout = 59 * time.Second }), code: fleet.CodeInvalidArgument, scope: "spec.idle_timeout_seconds"},
		"healthcheck empty":        {req: probed(fleet.HealthcheckSpec{}), code: fleet.CodeInvalidArgument, scope: "healthcheck"},
		"healthcheck both":         {req: probed(fleet.HealthcheckSpec{HTTP: &fleet.HealthcheckHTTP{Port: 1}, Exec: []string{"x"}}), code: fleet.CodeInvalidArgument, scope: "healthcheck"},
		"healthcheck port":         {req: probed(fleet.HealthcheckSpec{HTTP: &fleet.HealthcheckHTTP{Port: 65536}}), code: fleet.CodeInvalidArgument, scope: "healthcheck.http.port"},
		"healthcheck path":         {req: probed(fleet.HealthcheckSpec{HTTP: &fleet.HealthcheckHTTP{Port: 1, Path: "health"}}), code: fleet.CodeInvalidArgument, scope: "healthcheck.http.path"},
		"healthcheck blank word":   {req: probed(fleet.HealthcheckSpec{Exec: []string{"test", " "}}), code: fleet.CodeInvalidArgument, scope: "healthcheck.exec"},
		"healthcheck too long":     {req: probed(fleet.HealthcheckSpec{Exec: []string{strings.Repeat("x", 16<<10+1)}}), code: fleet.CodeInvalidArgument, scope: "healthcheck.exec"},
		"healthcheck negative":     {req: probed(fleet.HealthcheckSpec{Exec: []string{"x"}, Retries: -1}), code: fleet.CodeInvalidArgument, scope: "healthcheck.retries"},
		"healthcheck patience":     {req: probed(fleet.HealthcheckSpec{Exec: []string{"x"}, IntervalSeconds: 2, TimeoutSeconds: 3}), code: fleet.CodeInvalidArgument, scope: "healthcheck.timeout_seconds"},
		"desktop":                  {req: with(func(r *CreateRequest) { r.Boot.Desktop = &fleet.DesktopSpec{} }), code: fleet.CodeUnimplemented, scope: "desktop"},
		"expose":                   {req: with(func(r *CreateRequest) { r.Boot.Expose = []fleet.ExposeSpec{{Port: 0}} }), code: fleet.CodeInvalidArgument, scope: "expose.port"},
		"proxied egress":           {req: with(func(r *CreateRequest) { r.Spec.Egress.Mode = fleet.EgressProxy }), code: fleet.CodeUnimplemented, scope: "egress"},
		"hitl":                     {req: with(func(r *CreateRequest) { r.Spec.Hitl = &fleet.HitlSpec{} }), code: fleet.CodeUnimplemented, scope: "hitl"},
		"startup timeout negative": {req: with(func(r *CreateRequest) { r.Boot.StartupScriptTimeout = -time.Second }), code: fleet.CodeInvalidArgument, scope: "startup_script_timeout_seconds"},
		"startup timeout of 56 s":  {req: with(func(r *CreateRequest) { r.Boot.StartupScriptTimeout = 56 * time.Second }), code: fleet.CodeInvalidArgument, scope: "startup_script_timeout_seconds", is: fleet.ErrStartupScriptTimeoutTooLarge},
		"startup script with NUL":  {req: with(func(r *CreateRequest) { r.Boot.StartupScript = "a\x00" }), code: fleet.CodeInvalidArgument, scope: "startup_script"},
		"startup script of 2 MiB":  {req: with(func(r *CreateRequest) { r.Boot.StartupScript = strings.Repeat("a", 2<<20) }), code: fleet.CodeInvalidArgument, scope: "startup_script"},
		"no manifest":              {req: with(func(r *CreateRequest) { r.Boot.Manifest = []byte("{") }), code: fleet.CodeInvalidArgument, scope: "manifest_inline"},
		"manifest version":         {req: with(func(r *CreateRequest) { r.Boot.Manifest = []byte(`{"version":"2"}`) }), code: fleet.CodeInvalidArgument, scope: "manifest_inline"},
		"a service's image":        {req: with(func(r *CreateRequest) { r.Boot.Manifest = []byte(`{"version":"1","services":{"a":{"image":"a b"}}}`) }), code: fleet.CodeInvalidArgument, scope: "manifest_inline"},
		"a limit too low":          {req: with(func(r *CreateRequest) { r.Spec.Limits.CPUMillis = 1 }), code: fleet.CodeInvalidArgument, scope: "spec.limits.cpu_millis"},
		"services in a circle": {req: with(func(r *CreateRequest) {
			r.Boot.Manifest = []byte(`{"version":"1","services":{"a":{"depends_on":["a"]}}}`)
		}), code: fleet.CodeInvalidArgument, scope: "manifest_inline"},
		"manifest workspace": {req: with(func(r *CreateRequest) { r.Boot.Manifest = []byte(`{"version":"1","machine":{"workspace":"a"}}`) }), code: fleet.CodeInvalidArgument, scope: "manifest_inline"},
		"manifest variable name": {req: with(func(r *CreateRequest) {
			r.Boot.Manifest = []byte(`{"version":"1","machine":{"env":{"a-b":{"value":""}}}}`)
		}), code: fleet.CodeInvalidArgument, scope: "manifest_inline"},
		"manifest variable, both": {req: with(func(r *CreateRequest) {
			r.Boot.Manifest = []byte(`{"version":"1","machine":{"env":{"a":{"value":"","secret":"s"}}}}`)
		}), code: fleet.CodeInvalidArgument, scope: "manifest_inline"},
		"manifest wants a secret": {req: with(func(r *CreateRequest) {
			r.Boot.Manifest = []byte(`{"version":"1","machine":{"env":{"a":{"secret":"s"}}}}`)
		}), code: fleet.CodeInvalidArgument, scope: "secrets"},
		"257 secrets":               {req: with(func(r *CreateRequest) { r.Boot.Secrets = many(257) }), code: fleet.CodeInvalidArgument, scope: "secrets"},
		"secret without a name":     {req: with(func(r *CreateRequest) { r.Boot.Secrets = map[string]string{"": "v"} }), code: fleet.CodeInvalidArgument, scope: "secrets"},
		"secret value over 64 KiB":  {req: with(func(r *CreateRequest) { r.Boot.Secrets = map[string]string{"a": strings.Repeat("v", 64<<10+1)} }), code: fleet.CodePayloadTooLarge, scope: "secrets"},
		"seed snapshot":             {req: with(func(r *CreateRequest) { r.Spec.SeedSnapshotID = "s" }), code: fleet.CodeUnimplemented, scope: "seed_snapshot_id"},
		"task id before cpus":       {req: with(func(r *CreateRequest) { r.TaskID, r.Spec.CPUs = "/", -1 }), code: fleet.CodeInvalidArgument},
		"labels before host":        {req: with(func(r *CreateRequest) { r.Spec.HostID, r.Spec.Labels = "x", map[string]string{"": ""} }), code: fleet.CodeInvalidArgument, scope: "spec.labels"},
		"host before timeouts":      {req: with(func(r *CreateRequest) { r.Spec.HostID, r.Spec.IdleTimeout = "x", 1 }), code: fleet.CodeNotFound, scope: "spec.host_id"},
		"files before manifest":     {req: with(func(r *CreateRequest) { r.Boot.Files, r.Boot.Manifest = map[string][]byte{"a": nil}, []byte("{") }), code: fleet.CodeInvalidArgument, scope: "files"},
		"files over 512 KiB":        {req: with(func(r *CreateRequest) { r.Boot.Files = map[string][]byte{"/a": make([]byte, 512<<10+1)} }), code: fleet.CodePayloadTooLarge, scope: "files"},
		"secrets over 1 MiB in all": {req: with(func(r *CreateRequest) { r.Boot.Secrets = bigSecrets() }), code: fleet.CodePayloadTooLarge, scope: "secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := validate(tt.req, testRules())
			var fe *fleet.Error
			if !errors.As(err, &fe) || fe.Code != tt.code || fe.Details[fleet.DetailScope] != tt.scope {
				t.Fatalf("got %v (%+v), want code %s for %q", err, fe, tt.code, tt.scope)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is not %v", err, tt.is)
			}
			if fe.Details[fleet.DetailRemedy] == "" {
				t.Errorf("%v names no remedy", err)
			}
		})
	}
}

func bigSecrets() map[string]string {
	m := map[string]string{}
	for i := range 17 {
		m[fmt.Sprintf("k%d", i)] = strings.Repeat("v", 64<<10)
	}
	return m
}

func TestValidateGuestPaths(t *testing.T) {
	for p, ok := range map[string]bool{
		"/workspace/a": true, "/a": true, "/fused/a": true, "/etc/fuser": true, "/etc/profile.d/other.sh": true,
		"": false, "a": false, "/": false, "/a/": false, "/a/../b": false, "/a//b": false, "/./a": false,
		"/fuse": false, "/fuse/secrets.json": false, "/etc/fuse": false, "/etc/fuse/egress.json": false,
		"/etc/profile.d/fuse-egress.sh": false, "/a\nb": false, "/a\x00b": false, "/" + strings.Repeat("a", 4096): false,
	} {
		err := uploads.CheckFiles(map[string][]byte{p: nil})
		if (err == nil) != ok {
			t.Errorf("%.40q: %v, want ok %v", p, err, ok)
		}
	}
	if err := uploads.CheckFiles(map[string][]byte{"/a": nil, "/a/b/c": nil}); err == nil {
		t.Error("a file below a file was allowed")
	}
}

func TestValidateFillsDefaults(t *testing.T) {
	got, err := validate(CreateRequest{
		Spec: fleet.Spec{PinnedHostID: "x", Ancestors: []string{"x"}, GPUUUIDs: []string{"x"}, MIGInstanceUUIDs: []string{"x"}},
		Boot: fleet.BootOptions{TunnelConfig: []byte("x")},
	}, testRules())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fleet.Spec{CPUs: 1, RamMB: 512, StorageGB: 4}, got.spec); diff != "" {
		t.Error(diff)
	}
	if got.boot.StartupScriptTimeout != 30*time.Second || got.boot.TunnelConfig != nil || string(got.boot.Manifest) != fleet.DefaultFusedManifest || got.manifest.Machine.Workspace != "/workspace" {
		t.Errorf("boot options %+v, manifest %+v", got.boot, got.manifest)
	}
}

func TestValidateAllowsMoreWhenNobodyWaits(t *testing.T) {
	req := with(func(r *CreateRequest) { r.Boot.StartupScriptTimeout = 10 * time.Minute })
	r := testRules()
	r.async = true
	if _, err := validate(req, r); err != nil {
		t.Error(err)
	}
	req.Boot.StartupScriptTimeout = 2 * time.Hour
	if _, err := validate(req, r); !errors.Is(err, fleet.ErrStartupScriptTimeoutTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestValidateIsFreeOfItsInput(t *testing.T) {
	req := with(func(r *CreateRequest) {
		r.Boot.Secrets = map[string]string{"a": "b"}
		r.Spec.Labels = map[string]string{"a": "b"}
		r.Boot.Files = map[string][]byte{"/a": nil}
		r.Boot.Manifest = []byte(fleet.DefaultFusedManifest)
	})
	got, err := validate(req, testRules())
	if err != nil {
		t.Fatal(err)
	}
	req.Boot.Secrets["a"], req.Spec.Labels["a"], req.Boot.Files["/b"] = "x", "x", nil
	req.Boot.Manifest[0] = 'x'
	if got.boot.Secrets["a"] != "b" || got.spec.Labels["a"] != "b" || len(got.boot.Files) != 1 || got.boot.Manifest[0] != '{' {
		t.Errorf("the plan changed with its request: %+v", got)
	}
}

// Whatever the sizes are, they are refused or within the limits.
func TestValidateSizesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req := CreateRequest{Spec: fleet.Spec{CPUs: rapid.Int().Draw(t, "cpus"), RamMB: rapid.Int().Draw(t, "ram"), StorageGB: rapid.Int().Draw(t, "disk")}}
		l := DefaultLimits()
		p, err := validate(req, testRules())
		if err != nil {
			return
		}
		if p.spec.CPUs < 1 || p.spec.CPUs > l.MaxCPUs || p.spec.RamMB < l.MinRamMB || p.spec.RamMB > l.MaxRamMB || p.spec.StorageGB < 1 || p.spec.StorageGB > l.MaxStorageGB {
			t.Fatalf("%+v passed", p.spec)
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(fleet.DefaultFusedManifest))
	f.Add([]byte(`{"version":"1","machine":{"workspace":"/w","env":{"A":{"value":"it's"},"B":{"secret":"s"}}}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		m, err := decodeManifest(doc)
		if err != nil {
			if c := fleet.CodeOf(err); c != fleet.CodeInvalidArgument && c != fleet.CodeUnimplemented {
				t.Fatalf("%v has code %s", err, c)
			}
			return
		}
		env := string(m.Machine.Env.Lines(nil))
		for k, v := range m.Machine.Env {
			value := ""
			if v.Value != nil {
				value = *v.Value
			}
			if !strings.Contains(env, k+"="+shellQuote(value)+"\n") {
				t.Fatalf("%s is not in %q", k, env)
			}
		}
	})
}

// A real shell reads back what was quoted for it.
func TestShellQuoteProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.StringOfN(rapid.RuneFrom([]rune("ab'\"\\$`\n !*é")), 0, 20, -1).Draw(t, "text")
		got, err := exec.Command("sh", "-c", "printf %s "+shellQuote(want)).Output()
		if err != nil || string(got) != want {
			t.Fatalf("%q came back as %q (%v)", want, got, err)
		}
	})
}

func TestManifestEnv(t *testing.T) {
	m, err := decodeManifest([]byte(`{"version":"1","machine":{"env":{"B":{"secret":"s"},"A":{"value":"it's"},"C":{"value":""}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `A='it'\''s'` + "\n" + `B='x y'` + "\n" + `C=''` + "\n"
	if got := string(m.Machine.Env.Lines(map[string]string{"s": "x y"})); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHostname(t *testing.T) {
	for id, want := range map[string]string{
		"fuse-A.b_c":                      "fuse-a-b-c",
		"fuse-x-":                         "fuse-x",
		"fuse-" + strings.Repeat("A", 90): "fuse-" + strings.Repeat("a", 58),
	} {
		if got := fleet.GuestHostname(id); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
}

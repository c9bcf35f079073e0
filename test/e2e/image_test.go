package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
)

// TestImageOfARegistry creates machines by references: what is wrong with an
// image is said at once and leaves nothing, and what is right is pulled, pinned
// and kept for as long as it is used.
func TestImageOfARegistry(t *testing.T) {
	t.Parallel()
	r := ocitest.New(t)
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	arch, strange := fleet.NormalizeArch(runtime.GOARCH), fleet.ArchARM64
	if arch == strange {
		strange = fleet.ArchAMD64
	}
	layer := ocitest.Layer(t, ocitest.Program("bin/busybox", busybox), ocitest.Program("bin/sh", busybox))
	img := ocitest.Image(t, arch, v1.Config{User: "1000", WorkingDir: "/srv", Env: []string{"GREETING=hello"}}, layer)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ref := r.Push(t, "team/app:v1", img)
	other := r.Push(t, "team/other:v1", ocitest.Image(t, strange, v1.Config{}, layer))

	d := dev(t, bins.fuse, machineDir(t), nil)
	refused := func(what, want string, args ...string) {
		t.Helper()
		out := d.fuse(append([]string{"create", "--ram-mb", "256"}, args...)...)
		if out.code == 0 || !strings.Contains(out.err, want) {
			t.Errorf("%s: exit %d: %s", what, out.code, out.err)
		}
	}
	refused("an unknown tag", "has no image", "--image", strings.Replace(ref, ":v1", ":v2", 1))
	refused("another architecture", "is not built for", "--image", other)
	refused("no reference", "is no reference", "--image", "Upper/case:x")
	r.Set(ocitest.Faults{Status: http.StatusInternalServerError})
	refused("a registry that is down", "did not give image", "--image", ref)
	r.Set(ocitest.Faults{Login: "u:p"})
	refused("a registry that wants a login", "does not give image", "--image", ref)
	r.Set(ocitest.Faults{Flip: true})
	refused("other bytes than the digest's", "other bytes", "--image", ref)
	r.Set(ocitest.Faults{})
	if ids := d.ids(); len(ids) != 0 {
		t.Errorf("left: %v", ids)
	}

	d.must("create", "--task-id", "app", "--ram-mb", "256", "--image", ref)
	var env struct {
		Environment struct {
			ImageDigest string `json:"image_digest"`
			Spec        struct{ Image string }
		}
	}
	text := d.must("get", "fuse-app", "--json")
	if err := json.Unmarshal([]byte(text), &env); err != nil || env.Environment.Spec.Image == "" {
		_ = json.Unmarshal([]byte(text), &env.Environment) // it may come bare
	}
	if want := ref + "@" + digest.String(); env.Environment.Spec.Image != want || !strings.Contains(text, digest.String()) {
		t.Errorf("recorded: %+v, want %s\n%s", env, want, text)
	}
	if got := d.must("exec", "fuse-app", "--", "sh", "-c", "echo $GREETING; busybox id -u; pwd"); got != "hello\n1000\n/srv\n" {
		t.Errorf("the image's configuration: %q", got)
	}
	if out := d.fuse("image", "rm", ref, "--all-hosts"); out.code == 0 || !strings.Contains(out.out, "in use") {
		t.Errorf("remove one in use: exit %d: %s%s", out.code, out.out, out.err)
	}
	if got := d.must("image", "ls", "--all-hosts"); !strings.Contains(got, ref) || !strings.Contains(got, "minimal") {
		t.Errorf("list: %s", got)
	}
	d.must("rm", "fuse-app")
	d.must("image", "rm", ref, "--all-hosts")
	if got := d.must("image", "ls", "--all-hosts", "-o", "name"); strings.Contains(got, ref) {
		t.Errorf("still listed: %s", got)
	}
	d.stop()
}

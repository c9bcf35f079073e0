package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/oci"
	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
)

func bare(t *testing.T) *Store {
	t.Helper()
	s, err := Open(Config{Dir: t.TempDir(), Fused: "none"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func other(arch string) string {
	if arch == fleet.ArchAMD64 {
		return fleet.ArchARM64
	}
	return fleet.ArchAMD64
}

func simple(t *testing.T, s *Store) v1.Image {
	return ocitest.Image(t, s.arch, v1.Config{
		Env: []string{"A=1", "PATH=/opt/bin"}, User: "1000:1000", WorkingDir: "/srv/app", Entrypoint: []string{"/run"}, Cmd: []string{"x", "y"},
	}, ocitest.Layer(t, ocitest.Text("etc/first", "1"), ocitest.Text("gone", "1")), ocitest.Layer(t, ocitest.Text(".wh.gone", ""), ocitest.Text("second", "2")))
}

// content reads a file out of an image.
func content(t *testing.T, img Image, path string) string {
	t.Helper()
	out, err := exec.Command("/sbin/debugfs", "-R", "cat "+path, img.Path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// clean fails if anything is left of pulls beyond the images named.
func clean(t *testing.T, s *Store, want int) {
	t.Helper()
	entries, err := os.ReadDir(pulls{s}.ociDir())
	if err != nil {
		t.Fatal(err)
	}
	images := 0
	for _, e := range entries {
		switch {
		case e.Name() == "refs":
		case len(e.Name()) == 64:
			images++
		default:
			t.Errorf("%s is left", e.Name())
		}
	}
	if images != want {
		t.Errorf("%d images, want %d", images, want)
	}
}

func TestPull(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	img := simple(t, s)
	ref := r.Push(t, "team/app:v1", img)
	var lines []string
	var mu sync.Mutex
	got, err := s.Pull(t.Context(), ref, PullOptions{Progress: func(p oci.Progress) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, p.String())
	}})
	if err != nil {
		t.Fatal(err)
	}
	digest, _ := img.Digest()
	want := Meta{
		Name: ref, Digest: digest.String(), Arch: s.arch, Origin: OriginPulled, Resolved: digest.String(), Content: 3,
		Env: map[string]string{"A": "1", "PATH": "/opt/bin"}, User: "1000:1000", Workdir: "/srv/app", Entrypoint: []string{"/run"}, Cmd: []string{"x", "y"},
		Size: got.Size, Created: got.Created,
	}
	if diff := cmp.Diff(want, got.Meta); diff != "" {
		t.Error(diff)
	}
	if a, b := content(t, got, "/etc/first"), content(t, got, "/second"); a != "1" || b != "2" {
		t.Errorf("content %q, %q", a, b)
	}
	if !strings.Contains(strings.Join(lines, "\n"), "pulling image") {
		t.Errorf("progress %q", lines)
	}
	fsck(t, got.Path)
	clean(t, s, 1)
	before := r.Blobs.Load()
	pinned := bare(t)
	if _, err := pinned.Pull(t.Context(), ref+"@"+digest.String(), PullOptions{}); err != nil {
		t.Error(err)
	}
	before += r.Blobs.Load() - before
	if err := pinned.Remove(t.Context(), ref, false); err != nil { // by the name that lists show
		t.Errorf("remove: %v", err)
	}
	clean(t, pinned, 0)
	for _, again := range []string{ref, ref + "@" + digest.String(), digest.String()} {
		if found, err := s.Get(again); err != nil || found.Path != got.Path {
			t.Errorf("get %s: %v", again, err)
		}
	}
	if _, err := s.Pull(t.Context(), ref+"@"+digest.String(), PullOptions{}); err != nil || r.Blobs.Load() != before {
		t.Errorf("a second pull: %v, %d blobs", err, r.Blobs.Load()-before)
	}
}

func TestPullFollowsATagOnlyWhenAsked(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	old := simple(t, s)
	ref := r.Push(t, "app:latest", old)
	first, err := s.Pull(t.Context(), ref, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Push(t, "app:latest", ocitest.Image(t, s.arch, v1.Config{}, ocitest.Layer(t, ocitest.Text("new", "2"))))
	same, err := s.Pull(t.Context(), ref, PullOptions{})
	if err != nil || same.Digest != first.Digest {
		t.Errorf("without being asked: %v, %v", same.Digest, err)
	}
	next, err := s.Pull(t.Context(), ref, PullOptions{Again: true})
	if err != nil || next.Digest == first.Digest {
		t.Errorf("asked again: %v, %v", next.Digest, err)
	}
	if kept, err := s.Get(ref + "@" + first.Digest); err != nil || kept.Path != first.Path {
		t.Errorf("the old content: %v", err)
	}
}

func TestPullChoosesTheArchitecture(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	mine := simple(t, s)
	strange := ocitest.Image(t, other(s.arch), v1.Config{}, ocitest.Layer(t, ocitest.Text("x", "x")))
	idx := ocitest.Index(t, map[string]v1.Image{s.arch: mine, other(s.arch): strange})
	got, err := s.Pull(t.Context(), r.PushIndex(t, "multi:1", idx), PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := mine.Digest()
	index, _ := idx.Digest()
	if got.Digest != want.String() || got.Resolved != index.String() {
		t.Errorf("got %+v", got.Meta)
	}
	if found, err := s.Get(index.String()); err != nil || found.Path != got.Path {
		t.Errorf("by the index: %v", err)
	}
	for _, ref := range []string{
		r.Push(t, "strange:1", strange),
		r.PushIndex(t, "strange:2", ocitest.Index(t, map[string]v1.Image{other(s.arch): strange})),
	} {
		if _, err := s.Pull(t.Context(), ref, PullOptions{}); reason(err) != oci.ReasonArch || fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("another architecture: %v", err)
		}
	}
	clean(t, s, 1)
}

func reason(err error) string {
	var fe *fleet.Error
	if errors.As(err, &fe) && fe.Details[fleet.DetailRemedy] != "" {
		return fe.Details[fleet.DetailReason]
	}
	return ""
}

// Every fault of a registry is told apart, leaves nothing behind and does not
// stand in the way of the next try.
func TestPullFaults(t *testing.T) {
	for name, c := range map[string]struct {
		faults ocitest.Faults
		code   fleet.Code
		reason string
	}{
		"no such image":    {ocitest.Faults{Status: http.StatusNotFound}, fleet.CodeInvalidArgument, oci.ReasonUnknown},
		"login refused":    {ocitest.Faults{Status: http.StatusUnauthorized}, fleet.CodeInvalidArgument, oci.ReasonAuth},
		"forbidden":        {ocitest.Faults{Status: http.StatusForbidden}, fleet.CodeInvalidArgument, oci.ReasonAuth},
		"login needed":     {ocitest.Faults{Login: "u:p"}, fleet.CodeInvalidArgument, oci.ReasonAuth},
		"too many":         {ocitest.Faults{Status: http.StatusTooManyRequests}, fleet.CodeUnavailable, oci.ReasonRegistry},
		"registry is down": {ocitest.Faults{Status: http.StatusInternalServerError}, fleet.CodeUnavailable, oci.ReasonRegistry},
		"cut":              {ocitest.Faults{Cut: 100}, fleet.CodeUnavailable, oci.ReasonRegistry},
		"other bytes":      {ocitest.Faults{Flip: true}, fleet.CodeUnavailable, oci.ReasonCorrupt},
		"stands still":     {ocitest.Faults{Stall: true}, fleet.CodeUnavailable, oci.ReasonRegistry},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r := bare(t), ocitest.New(t)
			ref := r.Push(t, "app:1", ocitest.Image(t, s.arch, v1.Config{}, ocitest.Layer(t, ocitest.Text("x", strings.Repeat("noise", 100)+fmt.Sprint(time.Now()))),
				ocitest.Layer(t, ocitest.File{Header: tar.Header{Name: "big", Mode: 0o600}, Content: noise(200_000)})))
			r.Set(c.faults)
			began := time.Now()
			limits := oci.Config{Tries: 2}
			if c.faults.Stall { // a busy machine stands still for so long by itself
				limits.Stall = 300 * time.Millisecond
			}
			_, err := s.Pull(t.Context(), ref, PullOptions{OCI: limits})
			if fleet.CodeOf(err) != c.code || reason(err) != c.reason {
				t.Errorf("got %v (%s, %s)", err, fleet.CodeOf(err), reason(err))
			}
			if took := time.Since(began); took > 50*time.Second { // less than two transfers may stand still
				t.Errorf("took %v", took)
			}
			clean(t, s, 0)
			r.Set(ocitest.Faults{})
			if _, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil {
				t.Errorf("the next try: %v", err)
			}
			clean(t, s, 1)
		})
	}
}

// noise does not compress.
func noise(n int) []byte {
	out := make([]byte, n)
	x := uint32(1)
	for i := range out {
		x = x*1664525 + 1013904223
		out[i] = byte(x >> 24)
	}
	return out
}

func TestPullBeginsACutLayerAgain(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	ref := r.Push(t, "app:1", ocitest.Image(t, s.arch, v1.Config{}, ocitest.Layer(t, ocitest.File{Header: tar.Header{Name: "big", Mode: 0o600}, Content: noise(300_000)})))
	r.Set(ocitest.Faults{Cut: 100_000, CutFor: 2})
	if _, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil {
		t.Error(err)
	}
}

// A registry that is slow and goes on is waited for, however long it takes. What
// this machine itself holds up for so long is begun again.
func TestSlowRegistryIsWaitedFor(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	ref := r.Push(t, "app:1", ocitest.Image(t, s.arch, v1.Config{}, ocitest.Layer(t, ocitest.File{Header: tar.Header{Name: "big", Mode: 0o600}, Content: noise(2 << 20)})))
	r.Set(ocitest.Faults{Delay: 30 * time.Millisecond})
	const stall = time.Second
	began, blobs := time.Now(), r.Blobs.Load()
	if _, err := s.Pull(t.Context(), ref, PullOptions{OCI: oci.Config{Stall: stall, Tries: 6}}); err != nil {
		t.Error(err)
	}
	if took, n := time.Since(began), r.Blobs.Load()-blobs; took < stall {
		t.Errorf("it took %v and %d blobs, which shows nothing", took, n)
	}
}

func TestPullLogsIn(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	ref := r.Push(t, "private:1", simple(t, s))
	r.Set(ocitest.Faults{Login: "robot:s3cret"})
	_, err := s.Pull(t.Context(), ref, PullOptions{Auth: oci.Auth{Username: "robot", Password: "wrong-password"}})
	if reason(err) != oci.ReasonAuth || strings.Contains(fmt.Sprint(err), "wrong-password") {
		t.Errorf("a wrong login: %v", err)
	}
	if _, err := s.Pull(t.Context(), ref, PullOptions{Auth: oci.Auth{Username: "robot", Password: "s3cret"}}); err != nil {
		t.Errorf("the right login: %v", err)
	}
	conf := t.TempDir()
	t.Setenv("DOCKER_CONFIG", conf)
	text := fmt.Sprintf(`{"auths":{%q:{"auth":"cm9ib3Q6czNjcmV0"}}}`, r.Host)
	if err := os.WriteFile(filepath.Join(conf, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bare(t).Pull(t.Context(), ref, PullOptions{}); err != nil {
		t.Errorf("by docker's configuration: %v", err)
	}
	// A keychain of the system's, which docker asks by a program of its name.
	helper := filepath.Join(conf, "docker-credential-keychain")
	program := "#!/bin/sh\nread -r host; [ \"$1 $host\" = \"get " + r.Host + "\" ] || exit 1\necho '{\"Username\":\"robot\",\"Secret\":\"s3cret\"}'\n"
	if err := os.WriteFile(helper, []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", conf+":"+os.Getenv("PATH"))
	text = fmt.Sprintf(`{"credHelpers":{%q:"keychain"}}`, r.Host)
	if err := os.WriteFile(filepath.Join(conf, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bare(t).Pull(t.Context(), ref, PullOptions{}); err != nil {
		t.Errorf("by a credential helper: %v", err)
	}
}

func TestBadReferences(t *testing.T) {
	s := bare(t)
	for _, ref := range []string{"UPPER/x", "a b:c", "x@sha256:12", "x:", "http://x/y", strings.Repeat("a/", 300)} {
		if _, err := s.Pull(t.Context(), ref, PullOptions{}); fleet.CodeOf(err) != fleet.CodeInvalidArgument || reason(err) != oci.ReasonReference {
			t.Errorf("%q: %v", ref, err)
		}
	}
	if _, err := s.Pull(t.Context(), "169.254.169.254/latest/meta-data:x", PullOptions{}); reason(err) != oci.ReasonReference {
		t.Errorf("the metadata service: %v", err)
	}
	clean(t, s, 0)
}

// Pulls of one digest, in this process and in another, are one pull.
func TestPullsOfOneDigestAreOne(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	ref := r.Push(t, "app:1", simple(t, s))
	second, err := Open(Config{Dir: s.cfg.Dir, Fused: "none"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			if _, err := []*Store{s, second}[i%2].Pull(t.Context(), ref, PullOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Each pull reads the configuration; the layers are read once.
	if n := r.Blobs.Load(); n > 6+2 {
		t.Errorf("%d blobs were read", n)
	}
	clean(t, s, 1)
}

func TestHostileImagesAreRefused(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	for name, f := range map[string]ocitest.File{
		"climbs":   ocitest.Text("../../evil", "x"),
		"hardlink": {Header: tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "../../../etc/shadow"}},
	} {
		_, err := s.Pull(t.Context(), r.Push(t, name+":1", ocitest.Image(t, s.arch, v1.Config{}, ocitest.Layer(t, f))), PullOptions{})
		if fleet.CodeOf(err) != fleet.CodeInvalidArgument || reason(err) != oci.ReasonInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	clean(t, s, 0)
}

func TestNoRoom(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	ref := r.Push(t, "app:1", simple(t, s))
	s.cfg.MinFree = 1 << 60
	if _, err := s.Pull(t.Context(), ref, PullOptions{}); !errors.Is(err, fleet.ErrNoCapacity) || reason(err) != "image_no_room" {
		t.Errorf("a full disk: %v", err)
	}
	s.cfg.MinFree, s.cfg.MaxImageBytes = 1, 1
	if _, err := s.Pull(t.Context(), ref, PullOptions{}); fleet.CodeOf(err) != fleet.CodeInvalidArgument || reason(err) != "image_too_large" {
		t.Errorf("too large: %v", err)
	}
	clean(t, s, 0)
}

func TestImport(t *testing.T) {
	s := bare(t)
	img := simple(t, s)
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layout.Write(dir, mutate.AppendManifests(empty.Index))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "saved.tar")
	tag, _ := name.NewTag("app:1")
	if err := tarball.WriteToFile(archive, tag, img); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gzip", "-k", archive).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, path := range map[string]string{"layout": dir, "saved": archive, "zipped": archive + ".gz"} {
		got, err := s.Import(t.Context(), path, name, "", PullOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.User != "1000:1000" || got.Origin != OriginImported || content(t, got, "/second") != "2" {
			t.Errorf("%s: %+v", name, got)
		}
		if again, err := s.Import(t.Context(), path, name, "", PullOptions{}); err != nil || again.Path != got.Path {
			t.Errorf("%s again: %v", name, err)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 3 {
		t.Errorf("list %v, %v", list, err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no archive\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string][2]string{
		"nothing there": {filepath.Join(dir, "no"), "x"}, "no archive": {text, "x"}, "no layout": {t.TempDir(), "x"},
		"bad name": {dir, "A/b"}, "built-in": {dir, "minimal"},
	} {
		if _, err := s.Import(t.Context(), c[0], c[1], "", PullOptions{}); err == nil || fleet.CodeOf(err) == fleet.CodeInternal {
			t.Errorf("%s: %v", what, err)
		}
	}
	blobs, _ := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
	for _, b := range blobs {
		raw, _ := os.ReadFile(b)
		if len(raw) > 2 && raw[0] == 0x1f {
			raw[len(raw)/2] ^= 0xff
			_ = os.Chmod(b, 0o600)
			if err := os.WriteFile(b, raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.Import(t.Context(), dir, "damaged", "", PullOptions{}); err == nil || fleet.CodeOf(err) == fleet.CodeInternal {
		t.Errorf("damaged: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.imagesDir(), tmpPrefix+"*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// age makes an image look as if it was last used so long ago.
func age(t *testing.T, img Image, by time.Duration) {
	t.Helper()
	then := time.Now().Add(-by)
	if err := os.Chtimes(filepath.Join(filepath.Dir(img.Path), "meta.json"), then, then); err != nil {
		t.Fatal(err)
	}
}

// What a tag stood for goes after its image, not before, and not while a pull
// may be writing it.
func TestPruneForgetsTagsOfImagesThatAreGone(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	tags := map[string]string{}
	for _, name := range []string{"kept", "gone", "new"} {
		ref := r.Push(t, name+":1", ocitest.Image(t, s.arch, v1.Config{}, ocitest.Layer(t, ocitest.Text("n", name))))
		img, err := s.Pull(t.Context(), ref, PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := oci.Parse(ref)
		if err != nil {
			t.Fatal(err)
		}
		tags[name] = pulls{s}.tagPath(parsed.Name)
		rec, err := readMeta[tagRecord](tags[name])
		if err != nil {
			t.Fatal(err)
		}
		if rec.At = rec.At.Add(-2 * MinIdle); name != "new" {
			err = writeMeta(tags[name], rec)
		}
		if name != "kept" {
			err = errors.Join(err, os.RemoveAll(pulls{s}.pulledDir(img.Digest)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Prune(t.Context(), PruneOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"kept": true, "gone": false, "new": true} {
		if _, err := os.Stat(tags[name]); (err == nil) != want {
			t.Errorf("the tag of %s: %v", name, err)
		}
	}
}

func TestPruneSparesWhatIsUsed(t *testing.T) {
	s, r := bare(t), ocitest.New(t)
	images := map[string]Image{}
	for i, name := range []string{"held", "fresh", "old", "older"} {
		ref := r.Push(t, name+":1", ocitest.Image(t, s.arch, v1.Config{}, ocitest.Layer(t, ocitest.Text("n", name))))
		img, err := s.Pull(t.Context(), ref, PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		images[name] = img
		if name != "fresh" {
			age(t, img, time.Duration(i)*time.Hour+24*time.Hour)
		}
	}
	vm := filepath.Join(s.cfg.Dir, "vm-base.ext4")
	if err := s.Hold(images["held"], vm); err != nil {
		t.Fatal(err)
	}
	age(t, images["held"], 240*time.Hour)
	one, err := s.Prune(t.Context(), PruneOptions{MaxBytes: 1 << 40})
	if err != nil || len(one.Images) != 0 {
		t.Errorf("within the limit: %v, %v", one.Images, err)
	}
	two, err := s.Prune(t.Context(), PruneOptions{Unused: 27 * time.Hour})
	if err != nil || len(two.Images) != 1 || two.Images[0].Digest != images["older"].Digest || two.Freed <= 0 {
		t.Errorf("the oldest: %v, %v", two, err)
	}
	three, err := s.Prune(t.Context(), PruneOptions{})
	if err != nil || len(three.Images) != 1 || three.Images[0].Digest != images["old"].Digest {
		t.Errorf("the rest: %v, %v", three, err)
	}
	if err := s.Remove(t.Context(), images["held"].Name, false); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("remove one in use: %v", err)
	}
	if err := s.Remove(t.Context(), images["held"].Name, true); err != nil {
		t.Errorf("by force: %v", err)
	}
	if content(t, Image{Path: vm}, "/n") != "held" {
		t.Error("the VM lost its content")
	}
	if err := s.Hold(images["held"], vm+"2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("hold what is gone: %v", err)
	}
	clean(t, s, 1)
}

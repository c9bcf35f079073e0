package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// images builds the minimal image once for all tests of this package.
var images = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(bins.dir, "images-data")
	return dir, runIn(bins.dir, bins.fuse, "image", "build", "minimal", "--data-dir", dir)
})

// machineDir makes a data directory that has the minimal image already.
func machineDir(t testing.TB) string {
	t.Helper()
	from, err := images()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, sub := range []string{"images", "kernels"} {
		if err := os.Symlink(filepath.Join(from, sub), filepath.Join(dir, sub)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestDemonstration is the README's first command: from an empty data
// directory to a machine that came and went, with nothing left behind.
func TestDemonstration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := hostObjects(t)
	d := dev(t, bins.fuse, dir, nil, "--demo")
	out := d.out.String()
	for _, want := range []string{"building image minimal", "fuse create", "is running", "Linux", "a real machine came and went", "ready."} {
		if !strings.Contains(out, want) {
			t.Errorf("the demonstration does not say %q", want)
		}
	}
	if ids := d.ids(); len(ids) != 0 {
		t.Errorf("left in the list: %v", ids)
	}
	d.stop()
	sameObjects(t, before)

	// The second time nothing is built.
	d = dev(t, bins.fuse, dir, nil, "--demo")
	if strings.Contains(d.out.String(), "building image") {
		t.Error("the second start builds the image again")
	}
	d.stop()
	sameObjects(t, before)
}

// TestMachine walks a real machine through what users do with it.
func TestMachine(t *testing.T) {
	t.Parallel()
	before := hostObjects(t)
	d := dev(t, bins.fuse, machineDir(t), nil)
	task := "Build_7.2-RC"
	d.must("create", "--task-id", task, "--ram-mb", "256", "--secret", "API_KEY=open-sesame-42",
		"--startup-script", "echo starting; cat /fuse/secrets.json >/dev/null && echo secrets are there")
	id := "fuse-" + task
	// What the inventory does not see, it cannot miss.
	for _, kind := range []string{"netns", "link", "nft table", "mount", "process", "cgroup"} {
		if !slices.ContainsFunc(hostObjects(t), func(o string) bool { return strings.HasPrefix(o, kind+" ") && strings.Contains(o, "fuse") }) {
			t.Errorf("the inventory sees no %s of a running machine", kind)
		}
	}

	t.Run("exec", func(t *testing.T) {
		for _, c := range []struct {
			name  string
			stdin string
			args  []string
			want  outcome
		}{
			{"output", "", []string{"--", "echo", "a  b"}, outcome{0, "a  b\n", ""}},
			{"stderr and code", "", []string{"--", "sh", "-c", "echo out; echo err >&2; exit 3"}, outcome{3, "out\n", "err\n"}},
			{"missing program", "", []string{"--", "no-such-program"}, outcome{code: 127}},
			{"not executable", "", []string{"--", "/etc/passwd"}, outcome{code: 126}},
			{"signal", "", []string{"--", "sh", "-c", "kill -9 $$"}, outcome{code: 137}},
			{"timeout", "", []string{"--timeout", "500ms", "--", "sleep", "60"}, outcome{code: 124}},
			{"stdin", "one\ntwo\n", []string{"-i", "--", "wc", "-l"}, outcome{0, "2\n", ""}},
			{"no stdin is end of file", "", []string{"--", "cat"}, outcome{0, "", ""}},
			{"environment and directory", "", []string{"-e", "A=x y", "-w", "/tmp", "--", "sh", "-c", "echo $A $PWD"}, outcome{0, "x y /tmp\n", ""}},
			{"user", "", []string{"-u", "65534:65534", "--", "id", "-u"}, outcome{0, "65534\n", ""}},
			{"not text", "", []string{"--", "printf", `\377\000\376`}, outcome{0, "\xff\x00\xfe", ""}},
			{"shell", "", []string{"--shell", "--", "echo $((6*7))"}, outcome{0, "42\n", ""}},
		} {
			got := d.fuseIn(c.stdin, append(append([]string{"exec"}, c.args[:indexOf(c.args, "--")]...),
				append([]string{id}, c.args[indexOf(c.args, "--"):]...)...)...)
			if got.code != c.want.code || (c.want.out != "" && got.out != c.want.out) || (c.want.err != "" && got.err != c.want.err) {
				t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
			}
		}
	})
	t.Run("bytes", func(t *testing.T) {
		got := d.must("exec", id, "--", "sh", "-c", "head -c 3000000 /dev/urandom > /tmp/r; sha256sum < /tmp/r >&2; cat /tmp/r")
		if len(got) != 3000000 {
			t.Fatalf("%d bytes came back", len(got))
		}
		sum := sha256.Sum256([]byte(got))
		if inside := strings.Fields(d.must("exec", id, "--", "sha256sum", "/tmp/r"))[0]; inside != hex.EncodeToString(sum[:]) {
			t.Error("the bytes differ from the guest's")
		}
	})
	t.Run("logs", func(t *testing.T) {
		if got := d.must("logs", id); got != "starting\nsecrets are there\n" {
			t.Errorf("startup log %q", got)
		}
	})
	t.Run("identity", func(t *testing.T) {
		if got := d.must("exec", id, "--", "sh", "-c", "wc -c < /etc/machine-id"); strings.TrimSpace(got) != "33" {
			t.Errorf("machine-id has %q bytes", got)
		}
		if got := d.must("get", id); strings.Contains(got, "open-sesame") {
			t.Error("get shows a secret")
		}
	})
	t.Run("network", func(t *testing.T) {
		// Default deny: the host itself and the neighbourhood are out of reach.
		for _, target := range []string{"10.0.0.1:22", "169.254.169.254:80", "192.168.0.1:80"} {
			host, port, _ := strings.Cut(target, ":")
			if o := d.fuse("exec", id, "--", "nc", "-w", "1", host, port); o.code == 0 {
				t.Errorf("%s can be reached", target)
			}
		}
	})
	t.Run("fork bomb", func(t *testing.T) {
		if o := d.fuse("exec", "--timeout", "5s", id, "--", "sh", "-c", "b() { b | b & }; b; sleep 60"); o.code != 124 {
			t.Errorf("the bomb: %+v", o)
		}
		if got := d.must("exec", id, "--", "sh", "-c", "echo alive; ls /fuse"); !strings.Contains(got, "alive") || !strings.Contains(got, "secrets.json") {
			t.Errorf("after it: %q", got)
		}
	})
	t.Run("restart", func(t *testing.T) { restartKeeps(t, d, id) })

	d.must("rm", id)
	if o := d.fuse("rm", id); o.code != 0 {
		t.Errorf("the second rm: %+v", o)
	}
	if o := d.fuse("get", id); o.code != 3 || !strings.Contains(o.err, "manual_destroy") {
		t.Errorf("get after the end: %+v, want not found with the reason", o)
	}
	if got := d.must("logs", id); !strings.Contains(got, "starting") {
		t.Error("the startup log is gone with the machine")
	}
	if got := d.must("logs", "--console", id); !strings.Contains(got, "msg=ready") {
		t.Errorf("the console is gone with the machine: %.200q", got)
	}
	d.stop()
	sameObjects(t, before)
}

func indexOf(list []string, s string) int { return slices.Index(list, s) }

// restartKeeps kills server and host agent and starts them again: the machine
// runs on and is the same one.
func restartKeeps(t *testing.T, d *daemon, id string) {
	d.must("exec", id, "--", "sh", "-c", "echo kept > /root/file; (sleep 1000 & echo $! > /root/pid)")
	boot := d.must("exec", id, "--", "cat", "/proc/sys/kernel/random/boot_id")
	d.kill()
	*d = *dev(d.t, bins.fuse, d.dir, nil)
	if got := d.must("exec", id, "--", "cat", "/proc/sys/kernel/random/boot_id"); got != boot {
		t.Error("the machine booted again")
	}
	if got := d.must("exec", id, "--", "sh", "-c", "cat /root/file; kill -0 $(cat /root/pid) && echo alive"); got != "kept\nalive\n" {
		t.Errorf("after the restart: %q", got)
	}
	if !strings.Contains(d.must("ls"), "running") {
		t.Error("it is not listed as running")
	}
}

// TestMachineFaults makes real creates fail and looks at what users are told
// and what is left.
func TestMachineFaults(t *testing.T) {
	t.Parallel()
	before := hostObjects(t)
	d := dev(t, bins.fuse, machineDir(t), nil, "--host-cpus", "4", "--host-ram-mb", "4096")
	for _, c := range []struct {
		name, body string
		status     int
		want       []string // all of them somewhere in the answer
	}{
		{"negative size", `{"task_id":"a","spec":{"cpus":-1}}`, 400, []string{"cpus"}},
		{"absurd size", `{"task_id":"a","spec":{"ram_mb":2000000000}}`, 400, []string{"ram_mb", "limit"}},
		{"bad task id", `{"task_id":"../../x y"}`, 400, []string{"A-Za-z0-9"}},
		{"unknown image", `{"task_id":"a","spec":{"image":"nope"}}`, 400, []string{"nope", "minimal", "remedy"}},
		{"malformed", `{"task_id":`, 400, []string{"invalid_argument"}},
		{"gpu", `{"task_id":"a","spec":{"gpus":1}}`, 501, []string{"gpus"}},
		{"desktop", `{"task_id":"a","desktop":{"width":800,"height":600}}`, 501, []string{"desktop"}},
		{"no room", `{"task_id":"a","spec":{"cpus":64}}`, 503, []string{"limit", "usage", "remedy"}},
		{"script fails", `{"task_id":"a","startup_script":"echo so far; exit 9"}`, 400, []string{"9", "so far"}},
		{"script too slow", `{"task_id":"a","startup_script":"sleep 60","startup_script_timeout_seconds":1}`, 400, []string{"did not complete in time"}},
		{"script bound too large", `{"task_id":"a","startup_script":"true","startup_script_timeout_seconds":600}`, 400, []string{"55"}},
	} {
		got, err := d.http(http.MethodPost, "/v1/environments", c.body)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got.status != c.status {
			t.Errorf("%s: status %d %s, want %d", c.name, got.status, got.raw, c.status)
		}
		for _, w := range c.want {
			if !strings.Contains(got.raw, w) {
				t.Errorf("%s: the answer does not tell %q: %s", c.name, w, got.raw)
			}
		}
		if ids := d.ids(); len(ids) != 0 {
			t.Errorf("%s: left in the list: %v", c.name, ids)
		}
	}
	if got, err := d.http(http.MethodPost, "/v1/environments", `{"task_id":"a","no_such_field":1,"spec":{"ram_mb":256}}`); err != nil || got.status != 201 || got.header.Get("Warning") == "" {
		t.Errorf("unknown field: %v %d %q", err, got.status, got.header.Get("Warning"))
	}
	if got, err := d.http(http.MethodPost, "/v1/environments", `{"task_id":"a"}`); err != nil || got.status != 409 || !strings.Contains(got.raw, "fuse-a") {
		t.Errorf("duplicate: %v %d %s", err, got.status, got.raw)
	}
	if got, err := d.http(http.MethodPost, "/v1/environments", `{"task_id":"b","startup_script":"`+strings.Repeat("x", 2<<20)+`"}`); err != nil || got.status != 413 {
		t.Errorf("large body: %v %d", err, got.status)
	}
	d.must("rm", "fuse-a")
	d.stop()
	sameObjects(t, before)
}

// TestGuestDies ends a machine from inside: the server finds out and says why.
func TestGuestDies(t *testing.T) {
	t.Parallel()
	before := hostObjects(t)
	d := dev(t, bins.fuse, machineDir(t), nil, "--reconcile-interval", "1s")
	d.must("create", "--task-id", "dies", "--ram-mb", "256")
	d.fuse("exec", "fuse-dies", "--timeout", "60s", "--", "sh", "-c", "echo o > /proc/sysrq-trigger")
	d.gone(2 * time.Minute)
	if o := d.fuse("get", "fuse-dies"); o.code != 3 || !strings.Contains(o.err, "missing_from_provider") {
		t.Errorf("get after the death: %+v, want the reason", o)
	}
	if got := d.must("logs", "--console", "fuse-dies"); !strings.Contains(got, "ower") { // the kernel's last words
		t.Errorf("the console after the death: %.200q", got)
	}
	d.stop()
	sameObjects(t, before)
}

// TestEightAtOnce creates and removes eight machines at the same time.
func TestEightAtOnce(t *testing.T) {
	before := hostObjects(t)
	d := dev(t, bins.fuse, machineDir(t), nil, "--host-cpus", "16", "--host-ram-mb", "8192")
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := d.create(fmt.Sprintf("m%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("8 machines at once: %.1f s", time.Since(begin).Seconds())
	if ids := d.ids(); len(ids) != 8 {
		t.Errorf("%d machines are listed: %v", len(ids), ids)
	}
	names := map[string]string{}
	for _, id := range d.ids() {
		// A guest that measured its clock while others booted would be far ahead.
		up := d.must("exec", id, "--", "cat", "/proc/uptime")
		if inside, err := strconv.ParseFloat(strings.Fields(up)[0], 64); err != nil || inside > time.Since(begin).Seconds()*1.05 {
			t.Errorf("%s has been up for %s, %v after its create was sent", id, up, time.Since(begin))
		}
		name := d.must("exec", id, "--", "cat", "/etc/machine-id")
		if other, ok := names[name]; ok {
			t.Errorf("%s and %s have the same machine id %s", other, id, name)
		}
		names[name] = id
	}
	d.must("rm", "--all", "--yes")
	d.stop()
	sameObjects(t, before)
}

// TestCycleMachines creates and destroys machines one after another; the
// inventory of host objects and of the daemon's descriptors is the same after.
func TestCycleMachines(t *testing.T) {
	t.Parallel()
	before := hostObjects(t)
	d := dev(t, bins.fuse, machineDir(t), nil)
	cycle := func(i int) {
		task := fmt.Sprintf("c%d", i)
		if err := d.create(task); err != nil {
			t.Fatal(err)
		}
		d.must("rm", "fuse-"+task)
	}
	cycle(0) // the first one opens what is kept open
	// The kernel takes links away a moment after their namespace.
	testkit.Eventually(t, time.Minute, "no link of a machine is left", func() bool {
		return !slices.ContainsFunc(hostObjects(t), func(o string) bool { return strings.HasPrefix(o, "link fuse") })
	})
	fds, objects := d.fds(), hostObjects(t)
	for i := range testkit.Count(4, 100) {
		cycle(i + 1)
	}
	testkit.Eventually(t, time.Minute, "descriptors are as before", func() bool { return d.fds() <= fds })
	sameObjects(t, objects)
	d.stop()
	sameObjects(t, before)
}

package observe_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

const nonce = "00112233445566778899aabbccddeeff"

var (
	noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	pin  = model.Identity{Installation: "inst1", MachineID: "mm", DaemonID: "dd", DataRoot: "/var/lib/docker", Witness: "w1"}
)

func project(t testing.TB, name string) model.Project {
	t.Helper()
	p, err := model.ParseProject(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func labels(installation, proj string) string {
	return fmt.Sprintf(`{"fuse.playguard.installation":%q,"fuse.playguard.playground":"p1","com.docker.compose.project":%q,"com.docker.compose.service":"web","fuse.playguard.digest":"d1"}`, installation, proj)
}

// answer is a whole and healthy answer: one project of ours, one container of
// another installation, one foreign use of a name.
func answer() []observe.Part {
	marker, err := model.Marker{Kind: model.KindPlayground, Installation: "inst1", Marquee: "m1", Playground: "p1", Project: mustProject("shop--p1"), Epoch: 3, CreatedAt: noon}.Encode()
	if err != nil {
		panic(err)
	}
	return []observe.Part{
		{Name: "host", Out: []byte("installation=inst1\nmachine_id=mm\nboot_id=bb\nclock=1767355200\nuptime=3600\nepoch=7\ndisk_free=123\nodd_dirs=0\n")},
		{Name: "daemon", Out: []byte("id=dd\nroot=/var/lib/docker\nwitness=w1\nversion=28.2.2\nstorage=overlay2\nstarted=1767351600\n")},
		{Name: "compose", Out: []byte("flavour=v1\nversion=1.29.2\n")},
		{Name: "containers", Out: []byte(
			`{"id":"c1","name":"/shop--p1-web-1","state":"running","exit":0,"health":"healthy","restart":"no","finished":"0001-01-01T00:00:00Z","labels":` + labels("inst1", "shop--p1") + "}\n" +
				`{"id":"c2","name":"/other","state":"exited","exit":1,"health":"","restart":"no","finished":"2026-01-02T11:00:00.5Z","labels":` + labels("inst2", "theirs--p9") + "}\n")},
		{Name: "foreign", Out: []byte("f1 shop--p1\nf2 not_ours\n")},
		{Name: "volumes", Out: []byte(`{"name":"shop_data","labels":` + labels("inst1", "shop--p1") + "}\n")},
		{Name: "ops", Out: []byte("op1 shop--p1 up 7 running\nop2 shop--p1 stop 6 0\nop3 gone--p2 down 5 lost\n")},
		{Name: "projects", Out: []byte("shop--p1\n")},
		{Name: "marker:shop--p1", Out: marker},
		{Name: "files:shop--p1", Out: []byte("path=/opt/fuse/playgrounds/shop--p1\ncompose=abc\n")},
		{Name: "checkouts:shop--p1", Out: []byte("api\nweb\n")},
		{Name: "git:shop--p1:api", Out: []byte("repository=yes\nhead=yes\nchanged=0\nunpushed=0\nstashes=0\n")},
		{Name: "git:shop--p1:web", Status: 124, Err: []byte("terminated")},
	}
}

func mustProject(name string) model.Project {
	p, err := model.ParseProject(name)
	if err != nil {
		panic(err)
	}
	return p
}

func encode(t testing.TB, parts []observe.Part) []byte {
	t.Helper()
	b, err := observe.Encode(nonce, parts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func conclude(stdout []byte) observe.Look {
	return observe.Conclude(observe.Trip{Nonce: nonce, Ending: observe.EndedExit, Stdout: stdout, From: noon, To: noon}, pin)
}

// with returns the healthy answer with one part replaced.
func with(name string, change func(*observe.Part)) []observe.Part {
	parts := answer()
	for i := range parts {
		if parts[i].Name == name {
			change(&parts[i])
		}
	}
	return parts
}

func TestConcludeSeen(t *testing.T) {
	banner := append([]byte("Welcome!\nFUSE-LOOK 1 ffffffffffffffffffffffffffffffff\nbye\n"), encode(t, answer())...)
	l := conclude(append(banner, "logout\n"...))
	if l.Verdict() != observe.Seen || l.Reason() != observe.ReasonNone {
		t.Fatal(l.Verdict(), l.Reason(), l.Detail())
	}
	host, ok := l.Host()
	want := observe.Host{
		Identity: pin, Boot: model.Boot{BootID: "bb", DaemonStart: noon.Add(-time.Hour)}, Clock: noon, Uptime: time.Hour,
		Epoch: 7, DiskFree: 123, Docker: "28.2.2", Storage: "overlay2", Compose: observe.Compose{Flavour: "v1", Version: "1.29.2"},
	}
	if diff := cmp.Diff(want, host); !ok || diff != "" || !host.BootedAt().Equal(noon.Add(-time.Hour)) {
		t.Errorf("host (-want +got):\n%s", diff)
	}
	shop := l.Project(project(t, "shop--p1"))
	containers, ok := shop.Containers()
	if diff := cmp.Diff([]observe.Container{{
		ID: "c1", Name: "shop--p1-web-1", Service: "web", Playground: "p1", Digest: "d1", State: "running", Health: "healthy", Restart: "no",
	}}, containers); !ok || diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	volumes, _ := shop.Volumes()
	ops, _ := shop.Ops()
	foreign, _ := shop.Foreign()
	dir, _ := shop.Directory()
	checkouts, _ := shop.Checkouts()
	got := fmt.Sprintf("%v %v %v %v %v %s %s %v", volumes, ops, foreign, dir.Exists, dir.HasMarker, dir.Path, dir.Compose, checkouts)
	if want := "[{shop_data p1}] [{op1 up 7 true false 0} {op2 stop 6 false false 0}] [f1] true true /opt/fuse/playgrounds/shop--p1 abc [{api clean } {web unknown it could not be looked at: terminated}]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if d, why := shop.Dirt(); d != observe.DirtUnknown || !strings.HasPrefix(why, "web: ") {
		t.Error(d, why)
	}
	names, ok := l.Projects()
	if fmt.Sprint(names, ok) != "[gone--p2 shop--p1] true" {
		t.Error(names, ok)
	}
	none := l.Project(project(t, "nothing--p7"))
	if c, ok := none.Containers(); none.Verdict() != observe.Seen || !ok || len(c) != 0 {
		t.Error("a project without a trace on a seen host is seen to be absent")
	}
	if d, _ := none.Dirt(); d != observe.Clean {
		t.Error("nothing there, nothing dirty:", d)
	}
}

// TestCutAtEachByte is T05 and T06: an answer that ends early is never a
// shorter list, wherever it ends and however the link ended.
func TestCutAtEachByte(t *testing.T) {
	whole := encode(t, answer())
	for n := range whole {
		for _, ending := range []observe.Ending{observe.EndedWithout, observe.EndedExit, observe.EndedDeadline} {
			l := observe.Conclude(observe.Trip{Nonce: nonce, Ending: ending, Stdout: whole[:n]}, pin)
			want := observe.Partial
			if n == 0 {
				want = observe.Unseen
			}
			if l.Verdict() != want || l.Reason() == observe.ReasonNone {
				t.Fatalf("cut at %d of %d, %s: %s, %q", n, len(whole), ending, l.Verdict(), l.Reason())
			}
			blind(t, l)
		}
	}
	if v := observe.Conclude(observe.Trip{Nonce: nonce, Ending: observe.EndedWithout, Stdout: whole}, pin).Verdict(); v != observe.Seen {
		t.Error("a whole answer before the cut is whole:", v)
	}
}

// blind checks that nothing can be got out of a look that is not seen.
func blind(t *testing.T, l observe.Look) {
	t.Helper()
	if _, ok := l.Host(); ok {
		t.Fatal("a host that was not seen")
	}
	if _, ok := l.Projects(); ok {
		t.Fatal("a list of projects that was not seen")
	}
	p := l.Project(mustProject("shop--p1"))
	_, a := p.Containers()
	_, b := p.Volumes()
	_, c := p.Ops()
	_, d := p.Foreign()
	_, e := p.Directory()
	_, f := p.Checkouts()
	dirt, _ := p.Dirt()
	if a || b || c || d || e || f || dirt != observe.DirtUnknown || p.Verdict() == observe.Seen {
		t.Fatal("a list that was not seen")
	}
}

// TestChangedByte changes every byte once: the answer may not be seen as
// another one.
func TestChangedByte(t *testing.T) {
	whole := encode(t, answer())
	for n := range len(whole) - 1 {
		b := bytes.Clone(whole)
		b[n] ^= 1
		if v := conclude(b).Verdict(); v == observe.Seen {
			t.Fatalf("byte %d changed, and the answer is seen", n)
		}
	}
}

func TestZeroIsBlind(t *testing.T) {
	blind(t, observe.Look{})
	if (observe.ProjectLook{}).Verdict() != observe.Unseen {
		t.Error("the zero ProjectLook is unseen")
	}
}

func failed(status int, text string) func(*observe.Part) {
	return func(p *observe.Part) { p.Status, p.Out, p.Err = status, nil, []byte(text) }
}

func out(text string) func(*observe.Part) { return func(p *observe.Part) { p.Out = []byte(text) } }

// TestSignatures are the measured failure signatures: of Docker and of the
// host, as they show in a part of a complete answer.
func TestSignatures(t *testing.T) {
	tests := []struct {
		name   string
		parts  []observe.Part
		reason observe.Reason
	}{
		{"T06 daemon absent", with("containers", failed(1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")), observe.ReasonDaemon},
		{"T06 T32 volumes could not be listed", with("volumes", failed(1, "Cannot connect to the Docker daemon")), observe.ReasonDaemon},
		{"T07 an error without a known text", with("containers", failed(1, "Error response from daemon: something")), observe.ReasonDaemon},
		{"T02 no right on the socket", with("daemon", failed(1, "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock")), observe.ReasonPermission},
		{"T10 daemon frozen", with("daemon", failed(124, "")), observe.ReasonTimeout},
		{"T10 killed by timeout -k", with("containers", failed(137, "")), observe.ReasonTimeout},
		{"docker missing", with("daemon", failed(127, "sh: docker: not found")), observe.ReasonTooling},
		{"T03 client too new", with("daemon", failed(1, "Error response from daemon: client version 1.52 is too new. Maximum supported API version is 1.41")), observe.ReasonTooling},
		{"T11 compose missing", with("compose", failed(1, "docker: 'compose' is not a docker command.")), observe.ReasonTooling},
		{"T11 compose is old", with("compose", out("flavour=v1\nversion=1.25.0\n")), observe.ReasonTooling},
		{"T11 compose lies", with("compose", out("flavour=v9\nversion=1\n")), observe.ReasonTooling},
		{"T33 new data root", with("daemon", out("id=dd\nroot=/mnt/new\nwitness=\nversion=20.10\nstorage=vfs\nstarted=\n")), observe.ReasonIdentity},
		{"T34 another installation", with("host", out("installation=inst2\nmachine_id=mm\nboot_id=bb\nclock=1767355200\nuptime=1\nepoch=0\ndisk_free=1\nodd_dirs=0\n")), observe.ReasonIdentity},
		{"another machine", with("host", out("installation=inst1\nmachine_id=xx\nboot_id=bb\nclock=1767355200\nuptime=1\nepoch=0\ndisk_free=1\nodd_dirs=0\n")), observe.ReasonIdentity},
		{"witness volume gone", with("daemon", out("id=dd\nroot=/var/lib/docker\nwitness=\nversion=20.10\nstorage=vfs\nstarted=\n")), observe.ReasonIdentity},
		{"no boot id", with("host", out("installation=inst1\nmachine_id=mm\nclock=1767355200\nuptime=1\nepoch=0\ndisk_free=1\nodd_dirs=0\n")), observe.ReasonParse},
		{"a number is none", with("host", out("installation=inst1\nmachine_id=mm\nboot_id=b\nclock=soon\nuptime=1\nepoch=0\ndisk_free=1\nodd_dirs=0\n")), observe.ReasonParse},
		{"a key twice", with("host", out("boot_id=a\nboot_id=b\n")), observe.ReasonParse},
		{"half a line", with("containers", out(`{"id":"c1","name":"x","state":"running"`)), observe.ReasonParse},
		{"not JSON", with("containers", out("table\n")), observe.ReasonParse},
		{"two values in a line", with("volumes", out("{\"name\":\"a\"}{\"name\":\"b\"}\n")), observe.ReasonParse},
		{"unknown container state", with("containers", out("{\"id\":\"c1\",\"name\":\"x\",\"state\":\"resting\"}\n")), observe.ReasonParse},
		{"volume without name", with("volumes", out("{}\n")), observe.ReasonParse},
		{"foreign without project", with("foreign", out("f1\n")), observe.ReasonParse},
		{"unknown operation", with("ops", out("op1 shop--p1 prune 7 running\n")), observe.ReasonParse},
		{"operation of no project", with("ops", out("op1 shop up 7 running\n")), observe.ReasonParse},
		{"operation with a strange state", with("ops", out("op1 shop--p1 up 7 maybe\n")), observe.ReasonParse},
		{"operation with a strange epoch", with("ops", out("op1 shop--p1 up x running\n")), observe.ReasonParse},
		{"project twice", with("projects", out("shop--p1\nshop--p1\n")), observe.ReasonParse},
		{"part of an unlisted project", with("projects", out("")), observe.ReasonParse},
		{"illegal project", with("projects", out("../etc\n")), observe.ReasonParse},
		{"part missing", answer()[1:], observe.ReasonParse},
		{"part twice", append(answer(), answer()[0]), observe.ReasonParse},
		{"line too long", with("foreign", out("f "+strings.Repeat("x", observe.MaxLine)+"\n")), observe.ReasonParse},
		{"daemon start is no number", with("daemon", out("id=dd\nstarted=now\n")), observe.ReasonParse},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := conclude(encode(t, tt.parts))
			if l.Verdict() != observe.Unseen || l.Reason() != tt.reason || l.Detail() == "" {
				t.Errorf("%s, %q (%s), want unseen, %q", l.Verdict(), l.Reason(), l.Detail(), tt.reason)
			}
			blind(t, l)
			if id, ok := l.Claimed(); ok != (tt.reason == observe.ReasonIdentity) {
				t.Error("the claimed identity is there to be confirmed, if all was read:", id, ok)
			}
		})
	}
}

// TestListRace: a container that goes between the list and its inspection
// makes the look partial, not its host faulty.
func TestListRace(t *testing.T) {
	l := conclude(encode(t, with("containers", failed(1, "Error: No such object: 0123"))))
	if l.Verdict() != observe.Partial {
		t.Error(l.Verdict(), l.Detail())
	}
	blind(t, l)
}

// TestEndings are the failure signatures of the SSH layer.
func TestEndings(t *testing.T) {
	begun := encode(t, answer())[:200]
	tests := []struct {
		name    string
		ending  observe.Ending
		status  int
		stdout  []byte
		stderr  string
		verdict observe.Verdict
		reason  observe.Reason
	}{
		{"port closed", observe.EndedDial, 0, nil, "", observe.Unseen, observe.ReasonDial},
		{"host key", observe.EndedHostKey, 0, nil, "", observe.Unseen, observe.ReasonHostKey},
		{"T02 authentication", observe.EndedAuth, 0, nil, "", observe.Unseen, observe.ReasonAuth},
		{"handshake", observe.EndedHandshake, 0, nil, "", observe.Unseen, observe.ReasonHandshake},
		{"T18 session refused", observe.EndedSession, 0, nil, "", observe.Unseen, observe.ReasonSession},
		{"T43 silent peer", observe.EndedDeadline, 0, nil, "", observe.Unseen, observe.ReasonTimeout},
		{"silent in mid-answer", observe.EndedDeadline, 0, begun, "", observe.Partial, observe.ReasonTimeout},
		{"link cut", observe.EndedWithout, 0, nil, "", observe.Unseen, observe.ReasonCut},
		{"T08 sshd killed in mid-answer", observe.EndedWithout, 0, begun, "", observe.Partial, observe.ReasonCut},
		{"host-side timeout", observe.EndedExit, 124, nil, "", observe.Unseen, observe.ReasonTimeout},
		{"killed", observe.EndedSignal, 137, nil, "", observe.Unseen, observe.ReasonTimeout},
		{"no shell", observe.EndedExit, 127, []byte("banner\n"), "sh: not found", observe.Unseen, observe.ReasonTooling},
		{"exit 255 of the command", observe.EndedExit, 255, nil, "", observe.Unseen, observe.ReasonParse},
		{"daemon text only", observe.EndedExit, 1, nil, "Cannot connect to the Docker daemon", observe.Unseen, observe.ReasonDaemon},
		{"nothing at all, exit 0", observe.EndedExit, 0, nil, "", observe.Unseen, observe.ReasonParse},
		{"too much output", observe.EndedOutputOver, 0, begun, "", observe.Partial, observe.ReasonTooLarge},
		{"an ending we do not know", "surprise", 0, nil, "", observe.Unseen, observe.ReasonCut},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := observe.Conclude(observe.Trip{Nonce: nonce, Ending: tt.ending, Status: tt.status, Stdout: tt.stdout, Stderr: []byte(tt.stderr)}, pin)
			if l.Verdict() != tt.verdict || l.Reason() != tt.reason {
				t.Errorf("%s, %q (%s)", l.Verdict(), l.Reason(), l.Detail())
			}
			blind(t, l)
		})
	}
}

func TestFrameRefused(t *testing.T) {
	whole := string(encode(t, answer()))
	tests := []struct {
		name, stdout string
		reason       observe.Reason
	}{
		{"unknown version", strings.Replace(whole, "FUSE-LOOK 1", "FUSE-LOOK 2", 1), observe.ReasonParse},
		{"another answer's nonce", strings.ReplaceAll(whole, nonce, "ff"+nonce[2:]), observe.ReasonParse},
		{"another answer's end", strings.Replace(whole, "END "+nonce, "END ff"+nonce[2:], 1), observe.ReasonParse},
		{"a stray line", strings.Replace(whole, "PART daemon", "hello\nPART daemon", 1), observe.ReasonParse},
		{"a part said to be too long", strings.Replace(whole, "PART host 0 ", "PART host 0 9", 1), observe.ReasonCut},
		{"a part over its limit", strings.Replace(whole, "PART host 0 ", "PART host 0 9999", 1), observe.ReasonTooLarge},
		{"a line without an end", whole[:40] + "\n" + strings.Repeat("x", 2000), observe.ReasonParse},
		{"banner without an end", strings.Repeat("motd\n", observe.MaxPreamble/4) + whole, observe.ReasonTooLarge},
		{"an answer without an end", strings.Repeat("x", observe.MaxAnswer+1), observe.ReasonTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := conclude([]byte(tt.stdout))
			if l.Verdict() == observe.Seen || l.Reason() != tt.reason {
				t.Errorf("%s, %q (%s)", l.Verdict(), l.Reason(), l.Detail())
			}
			blind(t, l)
		})
	}
	if l := observe.Conclude(observe.Trip{Stdout: []byte(whole), Ending: observe.EndedExit}, pin); l.Verdict() != observe.Unseen {
		t.Error("without a nonce nothing is an answer")
	}
}

// TestProjectUnread: a directory that could not be read makes its own project
// partial and leaves the others seen; its checkouts are a matter of their own.
func TestProjectUnread(t *testing.T) {
	for _, part := range []string{"files:shop--p1", "marker:shop--p1"} {
		l := conclude(encode(t, with(part, failed(1, "Permission denied"))))
		p := l.Project(project(t, "shop--p1"))
		if _, ok := p.Containers(); l.Verdict() != observe.Seen || p.Verdict() != observe.Partial || ok {
			t.Error(part, l.Verdict(), p.Verdict(), ok)
		}
		if l.Project(project(t, "gone--p2")).Verdict() != observe.Seen {
			t.Error("one unread directory blinds another project")
		}
	}
	// What lies in a directory may be anybody's doing: nonsense there is that project's trouble.
	for part, text := range map[string]string{"files:shop--p1": "path=/a\npath=/b\n", "checkouts:shop--p1": "half a line"} {
		l := conclude(encode(t, with(part, out(text))))
		if _, ok := l.Project(project(t, "shop--p1")).Checkouts(); l.Verdict() != observe.Seen || l.Project(project(t, "gone--p2")).Verdict() != observe.Seen || ok == strings.HasPrefix(part, "checkouts") {
			t.Error(part, l.Verdict(), l.Detail(), ok)
		}
	}
	// A checkout without a part was not looked at.
	parts := slices.DeleteFunc(answer(), func(p observe.Part) bool { return strings.HasPrefix(p.Name, "git:") })
	if d, why := conclude(encode(t, parts)).Project(project(t, "shop--p1")).Dirt(); d != observe.DirtUnknown || !strings.Contains(why, "in time") {
		t.Error(d, why)
	}
	l := conclude(encode(t, with("checkouts:shop--p1", failed(1, ""))))
	p := l.Project(project(t, "shop--p1"))
	if _, ok := p.Checkouts(); p.Verdict() != observe.Seen || ok {
		t.Error("checkouts have a verdict of their own")
	}
	if d, _ := p.Dirt(); d != observe.DirtUnknown {
		t.Error(d)
	}
	l = conclude(encode(t, with("marker:shop--p1", out("{}"))))
	if dir, ok := l.Project(project(t, "shop--p1")).Directory(); !ok || !dir.Exists || dir.HasMarker {
		t.Error("a malformed marker is no marker:", dir)
	}
}

// TestDirt is T37 and T38: whatever exists nowhere else is dirty, and what git
// did not say is unknown.
func TestDirt(t *testing.T) {
	tests := []struct {
		git  string
		want observe.Dirt
	}{
		{"repository=yes\nhead=yes\nchanged=0\nunpushed=0\nstashes=0\n", observe.Clean},
		{"repository=yes\nhead=yes\nchanged=1\nunpushed=0\nstashes=0\n", observe.Dirty},
		{"repository=yes\nhead=yes\nchanged=0\nunpushed=3\nstashes=0\n", observe.Dirty},
		{"repository=yes\nhead=yes\nchanged=0\nunpushed=0\nstashes=1\n", observe.Dirty},
		{"repository=yes\nhead=yes\nbusy=rebase\nchanged=0\nunpushed=0\nstashes=0\n", observe.Dirty},
		{"repository=yes\nhead=no\nchanged=0\nunpushed=0\nstashes=0\n", observe.Dirty},
		{"repository=no\n", observe.Dirty},
		{"", observe.Dirty},
		{"repository=yes\nhead=yes\nchanged=0\nstashes=0\n", observe.DirtUnknown},
		{"repository=yes\nhead=yes\nchanged=-1\nunpushed=0\nstashes=0\n", observe.DirtUnknown},
		{"fatal: detected dubious ownership\n", observe.DirtUnknown},
	}
	for _, tt := range tests {
		l := conclude(encode(t, with("git:shop--p1:web", func(p *observe.Part) { *p = observe.Part{Name: p.Name, Out: []byte(tt.git)} })))
		got, why := l.Project(project(t, "shop--p1")).Dirt()
		if got != tt.want || (why == "") != (tt.want == observe.Clean) {
			t.Errorf("%q: %s (%s), want %s", tt.git, got, why, tt.want)
		}
	}
}

func TestReasons(t *testing.T) {
	persons := 0
	for _, r := range observe.Reasons() {
		if r == observe.ReasonNone {
			t.Error("none is no reason")
		}
		if r.NeedsPerson() {
			persons++
		}
	}
	if persons != 5 || len(observe.Reasons()) != 13 {
		t.Error(persons, len(observe.Reasons()))
	}
}

func TestEncodeRefuses(t *testing.T) {
	if _, err := observe.Encode("short", nil); err == nil {
		t.Error("a short nonce is taken")
	}
	for _, name := range []string{"", "Host", "host two", "marker:../x", "a:b:c:d"} {
		if _, err := observe.Encode(nonce, []observe.Part{{Name: name}}); err == nil {
			t.Errorf("part name %q is taken", name)
		}
	}
}

// FuzzConclude looks for bytes that break the parser, and holds that whatever
// is seen is within the limits and is what a whole frame says.
func FuzzConclude(f *testing.F) {
	whole := encode(f, answer())
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("FUSE-LOOK 1 " + nonce + "\nEND " + nonce + " 0 0 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := conclude(b)
		if l.Verdict() != observe.Seen {
			blind(t, l)
		}
	})
}

// FuzzParts gives parts of arbitrary content a proper frame, so that the
// readers of the parts are reached.
func FuzzParts(f *testing.F) {
	for i, p := range answer() {
		f.Add(i, p.Status, p.Out, p.Err)
	}
	f.Fuzz(func(t *testing.T, i, status int, stdout, stderr []byte) {
		parts := answer()
		p := &parts[int(uint(i)%uint(len(parts)))]
		p.Status, p.Out, p.Err = int(uint(status)%256), stdout, stderr
		b, err := observe.Encode(nonce, parts)
		if err != nil {
			return // lengths that no frame can carry
		}
		l := conclude(b)
		if l.Verdict() != observe.Seen {
			blind(t, l)
			return
		}
		containers, _ := l.Project(mustProject("shop--p1")).Containers()
		if _, err := json.Marshal(containers); err != nil {
			t.Error(err)
		}
	})
}

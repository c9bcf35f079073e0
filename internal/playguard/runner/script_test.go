package runner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
)

// shells are what a host may have as sh.
var shells = [][]string{{"dash"}, {"bash"}, {"busybox", "sh"}}

// patient is the script with the time for a look at a project that a machine of any
// load needs.
var patient = func() []byte {
	const limits = "\nlook_share=4 look_begin=14\n"
	if !bytes.Contains(runner.Script, []byte(limits)) {
		panic("the script has no " + limits)
	}
	return bytes.Replace(runner.Script, []byte(limits), []byte("\nlook_share=90 look_begin=600\n"), 1)
}()

// local runs the script here.
func local(t *testing.T, shell []string, args ...string) (out string, status int) {
	t.Helper()
	script := filepath.Join(t.TempDir(), "runner")
	if err := os.WriteFile(script, patient, 0o700); err != nil {
		t.Fatal(err)
	}
	argv := append(append(append([]string{}, shell...), script), args...)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	raw, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(raw), cmd.ProcessState.ExitCode()
}

// thisProcess is when it began, as the kernel counts, and the boot that it is of.
func thisProcess(t *testing.T) (began, boot string) {
	t.Helper()
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.Fields(rest)[19], strings.TrimSpace(string(id))
}

// What is known of an operation stands up to a host that was rebooted, and to
// a process number that is somebody else's by now.
func TestTruthOfOperations(t *testing.T) {
	t.Parallel()
	began, now := thisProcess(t)
	for _, test := range []struct{ name, pid, exit, want string }{
		{"runs", fmt.Sprintf("%d %s %s", os.Getpid(), began, now), "", "running"},
		{"number used again", fmt.Sprintf("%d %s %s", os.Getpid(), began+"1", now), "", "lost"},
		{"host rebooted", fmt.Sprintf("%d %s %s", os.Getpid(), began, "0b0c0d0e-0000-4000-8000-000000000000"), "", "lost"},
		{"process gone", "4194304 1 " + now, "", "lost"},
		{"torn record", fmt.Sprint(os.Getpid()), "", "lost"},
		{"no record of it", "", "", "lost"},
		{"ended well", "4194304 1 " + now, "0", "0"},
		{"ended with a status, then rebooted", "4194304 1 other", "17", "17"},
	} {
		for _, shell := range shells {
			root := filepath.Join(t.TempDir(), "opt", "fuse")
			rec := filepath.Join(root, "ops", "inst1", "op1")
			if err := os.MkdirAll(rec, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"pid": test.pid, "exit": test.exit} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(rec, name), []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if out, status := local(t, shell, "poll", root, "inst1", "op1"); status != 0 || strings.TrimSpace(out) != test.want {
				t.Errorf("%s: %s: %q, status %d; want %s", shell[0], test.name, out, status, test.want)
			}
			if out, _ := local(t, shell, "poll", root, "inst1", "op2"); out != "unknown\n" {
				t.Errorf("%s: an operation that never was: %q", shell[0], out)
			}
		}
	}
}

// Whatever a container left of the notes beside what was set aside, the rest is
// listed.
func TestInventoryOfWhatContainersWrote(t *testing.T) {
	t.Parallel()
	elsewhere := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(elsewhere, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range shells {
		root := filepath.Join(t.TempDir(), "fuse")
		made := func(project string) string {
			dir := filepath.Join(root, "swept", "inst1", project, ".fuse")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			return dir
		}
		for project, text := range map[string]string{"a--p1": "08", "b--p2": "later", "d--p4": fmt.Sprint(time.Now().Unix()-7200) + "\n"} {
			for name, what := range map[string]string{"aside": text, "last": "up\n"} {
				if err := os.WriteFile(filepath.Join(made(project), name), []byte(what), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		pipe, link := filepath.Join(made("c--p3"), "aside"), filepath.Join(made("c--p3"), "last")
		if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(elsewhere, link)); err != nil {
			t.Fatal(err)
		}
		out, status := local(t, shell, "inventory", root, "inst1")
		want := regexp.MustCompile(`^swept a--p1 \d{10} up\nswept b--p2 \d{1,3} up\nswept c--p3 \d{1,3} \nswept d--p4 7[2-9]\d\d up\n$`)
		if status != 0 || !want.MatchString(out) {
			t.Errorf("%s: %q, status %d", shell[0], out, status)
		}
	}
}

// Who meets a lock that is held is told of an operation that runs, never of one
// that was lost, which has no end either.
func TestWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	began, now := thisProcess(t)
	running := fmt.Sprintf("%d %s %s\n", os.Getpid(), began, now)
	for _, shell := range shells {
		dir := t.TempDir()
		root, script := filepath.Join(dir, "fuse"), filepath.Join(dir, "runner")
		put := func(name, text string, age time.Duration) {
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(name, time.Time{}, time.Now().Add(-age)); err != nil {
				t.Fatal(err)
			}
		}
		put(script, string(runner.Script), 0)
		lock := filepath.Join(root, "fence", "inst1", "lock")
		put(lock, "", 0)
		held, err := os.Open(lock)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		begin := func() string {
			cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], script, "start", root, "inst1", "2", "next", "a--p1", "p1", "files", "9")...)
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != 75 {
				t.Errorf("%s: %v %s", shell[0], err, out)
			}
			return strings.TrimSpace(string(out))
		}
		ops := filepath.Join(root, "ops", "inst1")
		put(filepath.Join(ops, "lost", "what"), "old--p1 up 1\n", time.Hour)
		put(filepath.Join(ops, "lost", "pid"), "4194304 1 "+now+"\n", time.Hour)
		if got := begin(); got != "runner: another operation is at work" {
			t.Errorf("%s: %q", shell[0], got)
		}
		put(filepath.Join(ops, "now", "what"), "shop--p2 branch 1\n", 2*time.Hour)
		put(filepath.Join(ops, "now", "pid"), running, 2*time.Hour)
		if got := begin(); !regexp.MustCompile(`^runner: another operation is at work: branch of shop--p2 under epoch 1, for 7[2-9]\d\d s$`).MatchString(got) {
			t.Errorf("%s: %q", shell[0], got)
		}
	}
}

// Who reads of an operation's end can begin the next one at once: the lock is free.
func TestTheLockIsFreeBeforeTheEndIsTold(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		root := filepath.Join(t.TempDir(), "fuse")
		for i := range 5 {
			op := fmt.Sprintf("op%d", i)
			ended := make(chan error, 1)
			go func() {
				ended <- lockAfter(t.Context(), filepath.Join(root, "ops", "inst1", op, "exit"), filepath.Join(root, "fence", "inst1", "lock"))
			}()
			if out, status := local(t, shell, "start", root, "inst1", "1", op, "shop--p1", "p1", "files", "30"); status != 0 {
				t.Fatalf("%s: status %d: %s", shell[0], status, out)
			}
			if err := <-ended; err != nil {
				t.Errorf("%s: the end of %s is there and the lock is held: %v", shell[0], op, err)
			}
		}
	}
}

// lockAfter tries the lock as soon as end is there.
func lockAfter(ctx context.Context, end, lock string) error {
	for ctx.Err() == nil {
		if _, err := os.Stat(end); err == nil {
			f, err := os.Open(lock)
			if err != nil {
				return err
			}
			defer f.Close()
			return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
	}
	return ctx.Err()
}

// Names that are not ours, and volumes where no operation may have them, are
// refused before anything is done.
func TestRefusals(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "opt", "fuse")
	for _, args := range [][]string{
		{"observe"},
		{"nothing", root, "inst1"},
		{"poll", "relative", "inst1", "op1"},
		{"poll", root + "/../etc", "inst1", "op1"},
		{"poll", root, "-inst", "op1"},
		{"poll", root, "inst1", "../op1"},
		{"poll", root, "inst1", "op 1"},
		{"start", root, "inst1", "x", "op1", "p--1", "1", "up", "10"},
		{"start", root, "inst1", "1", "op1", "p--1", "1", "explode", "10"},
		{"start", root, "inst1", "1", "op1", "$(id)", "1", "up", "10"},
		{"start", root, "inst1", "1", "op1", "p--1", "1", "up", "10", "volume1"},
		{"start", root, "inst1", "1", "op1", "p--1", "1", "stop", "10", "volume1"},
		{"start", root, "inst1", "1", "op1", "p--1", "1", "down", "10", "volume1"},
		{"start", root, "inst1", "1", "op1", "p--1", "1", "files", "10", "volume1"},
		{"start", root, "inst1", "1", "op1", "p--1", "1", "destroy", "10", "--all"},
		{"logs", root, "inst1", "s1", "1", "0", "many", "0", "0"},
		{"execute", root, "inst1", "s1", "1", "-service", "0", "", "", "true"},
	} {
		for _, shell := range shells {
			if _, status := local(t, shell, args...); status != 64 {
				t.Errorf("%s: %q: status %d", shell[0], args, status)
			}
		}
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("a refused call left something: %v", err)
	}
}

var (
	function = regexp.MustCompile(`(?m)^([a-z_]+)\(\) *[{(]`)
	// removes is what can take a volume away, or things that are not named.
	removes = regexp.MustCompile(`volume (rm|remove|prune)|prune|--volumes|--rmi|\bdown\b[^|]* -v|rm [^|]*-[a-z]*v|--renew-anon-volumes|-V\b`)
)

// No part of the script but destroy's can take a volume away, and no operation
// but destroy can name one.
func TestOnlyDestroyTakesVolumes(t *testing.T) {
	text := string(runner.Script)
	heads := function.FindAllStringSubmatchIndex(text, -1)
	if len(heads) < 20 {
		t.Fatalf("%d functions found in the script", len(heads))
	}
	found := 0
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		name := text[h[2]:h[3]]
		for line := range strings.Lines(text[h[0]:end]) {
			code, _, _ := strings.Cut(line, "#")
			if !strings.Contains(code, "docker") && !strings.Contains(code, "limited") && !strings.Contains(code, "asked") || !removes.MatchString(code) {
				continue
			}
			if found++; name != "do_destroy" {
				t.Errorf("%s can take volumes away: %s", name, line)
			}
		}
	}
	if found == 0 {
		t.Error("nothing removes volumes: the search is blind")
	}
	for _, op := range []decide.Op{decide.Up{}, decide.Stop{}, decide.Down{}, decide.Files{}, decide.Branch{}, decide.Pull{}, decide.Auth{}} {
		if v := decide.VerbOf(op); len(v.Volumes()) != 0 || v.Kind() == model.OpDestroy {
			t.Errorf("%T: %v", op, v)
		}
	}
}

// part is one function of the script.
func part(t *testing.T, name string) string {
	t.Helper()
	_, after, ok := strings.Cut(string(runner.Script), "\n"+name+"() {\n")
	body, _, _ := strings.Cut(after, "\n}\n")
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	return name + "() {\n" + body + "\n}\n"
}

// What is noted beside a playground is written through no link that a container made.
func TestNotesFollowNoLink(t *testing.T) {
	t.Parallel()
	const stubs = `set -u
		root=$PWD ops=$PWD/ops inst=inst1 project=a--p1 playground=p1 dir=$PWD/playgrounds/a--p1 I=i seconds=9
		docker() { :; }; asked() { :; }; ticks() { echo 0; }; owned() { :; }; spotless() { :; }; leftovers() { :; }; flock() { :; }; mine() { echo 1; }; do_stop() { :; }; watched() { :; }; unwatched() { :; }
		mkdir -p "$ops/op1"
		`
	for _, c := range []struct {
		note, run string
		now       string // where the note is afterwards
		refuses   bool   // if .fuse itself is a link
	}{
		{"aside", part(t, "do_sweep") + "do_sweep", "swept/inst1/a--p1", true},
		{"last", part(t, "run") + "run op1 a--p1 p1 stop 9; cat ops/op1/exit | grep -qx 0", "playgrounds/a--p1", false},
	} {
		for _, shell := range shells {
			for _, linked := range []string{".fuse/" + c.note, ".fuse"} {
				root, elsewhere := t.TempDir(), t.TempDir()
				victim, at := filepath.Join(elsewhere, c.note), filepath.Join(root, "playgrounds", "a--p1", linked)
				target, refused := victim, false
				if linked == ".fuse" {
					target, refused = elsewhere, c.refuses
				}
				if err := errors.Join(os.WriteFile(victim, []byte("mine"), 0o600), os.MkdirAll(filepath.Dir(at), 0o700), os.Symlink(target, at)); err != nil {
					t.Fatal(err)
				}
				cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-c", stubs+c.run)...)
				cmd.Dir = root
				if out, err := cmd.CombinedOutput(); (err != nil) != refused || len(out) > 0 {
					t.Errorf("%s: %s: %v %s", shell[0], linked, err, out)
				}
				if raw, err := os.ReadFile(victim); err != nil || string(raw) != "mine" {
					t.Errorf("%s: %s: what a link named holds %q %v", shell[0], linked, raw, err)
				}
				info, err := os.Lstat(filepath.Join(root, c.now, ".fuse", c.note))
				if linked != ".fuse" && (err != nil || !info.Mode().IsRegular()) {
					t.Errorf("%s: %s is not noted: %v", shell[0], c.note, err)
				}
			}
		}
	}
}

// What was held still is asked for again until it goes on, also after an operation
// that ended: a daemon that does not answer leaves nothing paused for ever.
func TestLetGo(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		root := t.TempDir()
		// The daemon of this test: it answers if "up" is there, and what "paused" lists is.
		docker := `asked() {
			[ -f up ] || return 1
			case $1 in
			unpause) grep -qx "$2" paused && { grep -vx "$2" paused >left; mv left paused; } ;;
			ps) id=${4#id=}; grep -x "$id" paused; return 0 ;;
			esac
		}
		set -u
		root=$PWD/root ops=$PWD/ops rec=$PWD/ops/new
		`
		write := func(name, what string) {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, name), []byte(what), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		read := func(name string) string {
			raw, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				return "-"
			}
			return string(raw)
		}
		leftovers := func() {
			cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-c", docker+part(t, "let_go")+part(t, "leftovers")+"leftovers")...)
			cmd.Dir = root
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("%s: %v %s", shell[0], err, out)
			}
		}
		write("paused", "aa\nbb\n")
		write("ops/ended/held", "aa\n")
		write("ops/ended/exit", "69\n")
		write("ops/cut/held", "bb\ncc\n") // the latter is gone
		write("ops/cut/payload", "secret")
		leftovers()
		if read("paused") != "aa\nbb\n" || read("ops/ended/held") != "aa\n" || read("ops/cut/held") != "bb\ncc\n" || read("ops/cut/payload") != "-" {
			t.Errorf("%s: without a daemon %q %q %q", shell[0], read("paused"), read("ops/ended/held"), read("ops/cut/held"))
		}
		write("up", "")
		leftovers()
		if read("paused") != "" || read("ops/ended/held") != "-" || read("ops/cut/held") != "-" {
			t.Errorf("%s: with one %q %q %q", shell[0], read("paused"), read("ops/ended/held"), read("ops/cut/held"))
		}
	}
}

// Logins of a playground hide no daemon that the user's own configuration names.
func TestLoginsKeepTheDaemon(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	docker := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), "docker", args...)
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("docker %v: %v %s", args, err, out)
		}
	}
	docker("context", "create", "rootless", "--docker", "host=unix:///run/user/1000/docker.sock")
	docker("context", "use", "rootless")
	for project, want := range map[string]string{"with": "unix:///run/user/1000/docker.sock", "without": ""} {
		for _, shell := range shells {
			dir := filepath.Join(t.TempDir(), project)
			if err := os.MkdirAll(filepath.Join(dir, map[string]string{"with": "docker-config"}[project]), 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-c", part(t, "logins")+`logins "$0"; logins "$0"; docker context inspect --format '{{.Endpoints.docker.Host}}' && echo "${DOCKER_HOST-}"`, dir)...)
			cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
			out, err := cmd.Output()
			if err != nil || string(out) != "unix:///run/user/1000/docker.sock\n"+want+"\n" {
				t.Errorf("%s, %s logins: %q, %v", shell[0], project, out, err)
			}
		}
	}
}

package providertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// testOneVM shares one VM among the tests that leave it as it is.
func testOneVM(s *suite) {
	ref := newRef("suite-one")
	env := s.create(ref)
	for _, test := range []struct {
		name string
		run  func(*suite, provider.Ref, provider.Environment)
	}{
		{"ExecStatus", testExecStatus},
		{"ExecBytes", testExecBytes},
		{"ExecEnds", testExecEnds},
		{"Upload", testUpload},
		{"Foreign", testForeign},
		{"RepeatCreate", testRepeatCreate},
		{"OtherLife", testOtherLife},
		{"StaleGeneration", testStaleGeneration},
		{"StaleTerm", testStaleTerm},
		{"Drain", testDrain},
	} {
		s.t.Run(test.name, func(t *testing.T) {
			inner := *s
			inner.t = t
			test.run(&inner, ref, env)
			if got := inner.listed(inner.p); !slices.Equal(got, []string{ref.UID}) {
				t.Errorf("afterwards the host lists %v", got)
			}
			s.p = inner.p
			env = s.p.Open(ref)
			inner.wantEcho(env)
		})
	}
	s.destroy(ref)
}

func testExecStatus(s *suite, _ provider.Ref, env provider.Environment) {
	for _, test := range []struct {
		name   string
		spec   fleet.ExecSpec
		status fleet.ExecStatus
		stdout string
	}{
		{"true", fleet.ExecSpec{Argv: []string{"true"}}, fleet.ExecStatus{}, ""},
		{"false", fleet.ExecSpec{Argv: []string{"false"}}, fleet.ExecStatus{ExitCode: 1}, ""},
		{"exit code", fleet.ExecSpec{Argv: []string{"sh", "-lc", "exit 7"}}, fleet.ExecStatus{ExitCode: 7}, ""},
		{"not found", fleet.ExecSpec{Argv: []string{"no-such-command"}}, fleet.ExecStatus{ExitCode: 127}, ""},
		{"env", fleet.ExecSpec{Argv: []string{"sh", "-c", `echo "$GREETING"`}, Env: map[string]string{"GREETING": "a  b"}}, fleet.ExecStatus{}, "a  b\n"},
		{"cwd", fleet.ExecSpec{Argv: []string{"pwd"}, Cwd: "/tmp"}, fleet.ExecStatus{}, "/tmp\n"},
		{"odd arguments", fleet.ExecSpec{Argv: []string{"echo", "", "a\tb", "c\"d", "e\nf"}}, fleet.ExecStatus{}, " a\tb c\"d e\nf\n"},
	} {
		res, err := Exec(s.ctx, env, test.spec, 1<<20)
		if err != nil {
			s.t.Errorf("%s: %v", test.name, err)
			continue
		}
		if res.ExecStatus != test.status || string(res.Stdout) != test.stdout {
			s.t.Errorf("%s: %+v %q, want %+v %q", test.name, res.ExecStatus, res.Stdout, test.status, test.stdout)
		}
	}
	res, err := Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}, 1<<10)
	if err != nil || string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" || res.ExitCode != 3 {
		s.t.Errorf("both streams: %+v, %v", res, err)
	}
	_, err = Exec(s.ctx, env, fleet.ExecSpec{}, 1)
	s.wantCode("empty command", err, fleet.CodeInvalidArgument)
}

func testExecBytes(s *suite, _ provider.Ref, env provider.Environment) {
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent) // never fails
	var got bytes.Buffer
	status, err := env.ExecStream(s.ctx, fleet.ExecSpec{Argv: []string{"cat"}}, fleet.Stdio{Stdin: bytes.NewReader(sent), Stdout: &got})
	if err != nil || status.ExitCode != 0 || !bytes.Equal(got.Bytes(), sent) {
		s.t.Errorf("cat of %d bytes gave %d, equal %v: %+v, %v", len(sent), got.Len(), bytes.Equal(got.Bytes(), sent), status, err)
	}
	res, err := Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"cat"}}, 1)
	if err != nil || res.ExitCode != 0 || len(res.Stdout) != 0 {
		s.t.Errorf("without stdin a command reads end of file: %+v, %v", res, err)
	}
	res, err = Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"seq", "100000"}}, 1<<10)
	if err != nil || !res.Truncated || len(res.Stdout) != 1<<10 || !bytes.HasPrefix(res.Stdout, []byte("1\n2\n3\n")) {
		s.t.Errorf("over the limit: truncated %v, %d bytes, %v", res.Truncated, len(res.Stdout), err)
	}
}

func testExecEnds(s *suite, _ provider.Ref, env provider.Environment) {
	res, err := Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"sleep", "600"}, Timeout: 100 * time.Millisecond}, 1)
	if err != nil || res.ExitCode != 124 || !res.TimedOut {
		s.t.Errorf("timeout: %+v, %v", res, err)
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	out := writerFunc(func(p []byte) (int, error) { cancel(errGivenUp); return len(p), nil })
	_, err = env.ExecStream(ctx, fleet.ExecSpec{Argv: []string{"yes"}}, fleet.Stdio{Stdout: out})
	if err == nil {
		s.t.Error("a cancelled exec is no success")
	}
	broken := writerFunc(func([]byte) (int, error) { return 0, errGivenUp })
	_, err = env.ExecStream(s.ctx, fleet.ExecSpec{Argv: []string{"yes"}}, fleet.Stdio{Stdout: broken})
	if !errors.Is(err, errGivenUp) {
		s.t.Errorf("a writer that fails ends the exec with its error: %v", err)
	}
}

var errGivenUp = errors.New("the test has seen enough")

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func testUpload(s *suite, _ provider.Ref, env provider.Environment) {
	data := []byte("line\n\x00\xff binary\r\n")
	err := env.Upload(s.ctx, []fleet.GuestFile{{Path: "/suite/deep/file", Data: data}, {Path: "/suite/empty"}})
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"cat", "/suite/deep/file", "/suite/empty"}}, 1<<10)
	if err != nil || !bytes.Equal(res.Stdout, data) {
		s.t.Errorf("read back %q, %v", res.Stdout, err)
	}
	err = env.Upload(s.ctx, []fleet.GuestFile{{Path: "not/absolute", Data: data}})
	s.wantCode("upload to a relative path", err, fleet.CodeInvalidArgument)
}

func testForeign(s *suite, ref provider.Ref, _ provider.Environment) {
	other := s.Connect(NewFleet())
	if uids := s.listed(other); len(uids) != 0 {
		s.t.Errorf("another fleet sees %v", uids)
	}
	l, err := other.List(s.ctx)
	if err != nil || l.Foreign != 1 {
		s.t.Errorf("another fleet counts %d foreign VMs, %v", l.Foreign, err)
	}
	_, err = other.Get(s.ctx, ref)
	s.wantCode("get by another fleet", err, fleet.CodeNotFound)
	err = other.Destroy(s.ctx, again(ref))
	s.wantCode("destroy by another fleet", err, fleet.CodeForbidden)
	_, err = Exec(s.ctx, other.Open(ref), fleet.ExecSpec{Argv: []string{"true"}}, 1)
	s.wantCode("exec by another fleet", err, fleet.CodeForbidden)
	_, err = other.Create(s.ctx, s.request(again(ref)))
	s.wantCode("create of a uid by another fleet", err, fleet.CodeConflict)
}

func testRepeatCreate(s *suite, ref provider.Ref, _ provider.Environment) {
	first, err := s.p.Create(s.ctx, s.request(ref))
	if err != nil {
		s.t.Fatalf("a repeated create gets the first answer: %v", err)
	}
	second, err := s.p.Create(s.ctx, s.request(ref))
	if err != nil || !cmp.Equal(first.Boot, second.Boot) || first.ImageDigest != second.ImageDigest {
		s.t.Errorf("answers differ: %+v and %+v, %v", first, second, err)
	}
	_, err = s.p.Create(s.ctx, s.request(again(ref)))
	s.wantCode("another create of the same life", err, fleet.CodeConflict)
}

func testOtherLife(s *suite, ref provider.Ref, _ provider.Environment) {
	other := newRef(ref.ID)
	_, err := s.p.Create(s.ctx, s.request(other))
	s.wantCode("a second life of the same VM", err, fleet.CodeConflict)
	if err == nil || !strings.Contains(err.Error(), ref.UID) {
		s.t.Errorf("the refusal does not name the life in the way: %v", err)
	}
	older := newRef(ref.ID)
	if err := s.p.Destroy(s.ctx, older); err != nil {
		s.t.Errorf("destroy of another life: %v", err)
	}
	_, err = s.p.Create(s.ctx, s.request(again(older)))
	s.wantCode("create of a life that was destroyed before", err, fleet.CodeConflict)
}

func testStaleGeneration(s *suite, _ provider.Ref, _ provider.Environment) {
	next := newRef("suite-generation")
	next.Generation = 5
	s.create(next)
	old := again(next)
	old.Generation = 4
	s.wantCode("destroy by an earlier claim", s.p.Destroy(s.ctx, old), fleet.CodeConflict)
	if got := s.listed(s.p); len(got) != 2 {
		s.t.Errorf("after it the host lists %v", got)
	}
	next.Generation = 0 // any
	s.destroy(next)
}

func testStaleTerm(s *suite, ref provider.Ref, env provider.Environment) {
	leader := s.fleet.At(10)
	p := s.Connect(leader)
	if _, err := p.(provider.Claimer).Claim(s.ctx); err != nil {
		s.t.Fatalf("claim of a higher term: %v", err)
	}
	fresh := newRef("suite-stale")
	_, err := s.p.Create(s.ctx, s.request(fresh))
	s.wantStale("create in a stale term", err)
	s.wantStale("destroy in a stale term", s.p.Destroy(s.ctx, again(ref)))
	_, err = Exec(s.ctx, env, fleet.ExecSpec{Argv: []string{"true"}}, 1)
	s.wantStale("exec in a stale term", err)
	s.wantStale("upload in a stale term", env.Upload(s.ctx, []fleet.GuestFile{{Path: "/stale"}}))
	_, err = env.Drain(s.ctx, "")
	s.wantStale("drain in a stale term", err)
	s.wantStale("claim of a stale term", s.claim(s.p))
	twin := s.Connect(s.fleet.At(10))
	s.wantStale("claim of the same term by another", s.claim(twin))
	s.wantStale("destroy by another claimant", twin.Destroy(s.ctx, again(ref)))
	res, err := Exec(s.ctx, p.Open(ref), fleet.ExecSpec{Argv: []string{"cat", "/stale"}}, 1)
	if err != nil || res.ExitCode != 1 {
		s.t.Errorf("the refused upload had an effect, or: %+v, %v", res, err)
	}
	s.p, s.fleet = p, leader
}

func testDrain(s *suite, ref provider.Ref, _ provider.Environment) {
	handle := s.p.Open(again(ref))
	status, err := handle.Drain(s.ctx, "exit 4")
	if err != nil || status.ExitCode != 4 {
		s.t.Errorf("drain: %+v, %v", status, err)
	}
	status, err = handle.Drain(s.ctx, "exit 5")
	if err != nil || status.ExitCode != 4 {
		s.t.Errorf("a repeated drain gets the first answer: %+v, %v", status, err)
	}
}

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fusevm/fuse/internal/testkit"
)

// Where a test looks at its hosts several times a second, a look has too little
// time for a busy machine; servers that are no test of it bear many missed ones.
const patientEnv, patientLooks = "ORCH_HOST_UNREACHABLE_LOOKS", "1000"

// TestMain lets the test binary be the fuse that scripts run.
func TestMain(m *testing.M) {
	testscript.Main(testkit.Leakless{Tests: m}, map[string]func(){"fuse": main})
}

// TestScripts runs the command line against real servers with simulated
// machines. UPDATE_SCRIPTS=1 writes the golden texts anew.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") == "1",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			for _, name := range []string{"ADDR", "ADDR2"} {
				addr, release, err := testkit.ReserveAddr("127.0.0.1")
				if err != nil {
					return err
				}
				e.Defer(release)
				e.Setenv(name, addr)
			}
			e.Setenv(patientEnv, patientLooks)
			// A program under the race detector sleeps a second before it exits.
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "config"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code, "until": until, "capture": capture},
	})
}

// code N PROGRAM ARG... runs a program and wants exit code N of it.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// capture NAME stdout REGEXP keeps the first match in a variable.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: capture NAME FILE REGEXP")
	}
	found := regexp.MustCompile(args[2]).FindString(ts.ReadFile(args[1]))
	if found == "" {
		ts.Fatalf("nothing matches %s", args[2])
	}
	ts.Setenv(args[0], found)
}

// until PROGRAM ARG... runs a program until it succeeds.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: until PROGRAM ARG...")
	}
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); {
		began := time.Now()
		if ts.Exec(args[0], args[1:]...) == nil {
			return
		}
		<-time.After(testkit.Pause(time.Since(began)))
	}
	ts.Fatalf("%s never succeeds", args[0])
}

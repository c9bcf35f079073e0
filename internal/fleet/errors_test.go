package fleet

import (
	"errors"
	"fmt"
	"maps"
	"testing"
)

func TestErrorKeepsCauseAndCode(t *testing.T) {
	err := fmt.Errorf("create: %w", Errorf(CodeConflict, "environment fuse-a: %w", ErrTaskAlreadyAssigned).With(DetailScope, "task a"))
	if !errors.Is(err, ErrTaskAlreadyAssigned) {
		t.Error("the sentinel is lost")
	}
	if got := CodeOf(err); got != CodeConflict {
		t.Errorf("CodeOf = %s", got)
	}
	if got, want := err.Error(), "create: environment fuse-a: task already assigned"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

func TestWrapHidesTheCauseFromCallers(t *testing.T) {
	cause := errors.New("dial unix /secret/path: refused")
	err := Wrap(CodeUnavailable, cause, "the host does not answer")
	if err.Message != "the host does not answer" {
		t.Errorf("message %q tells the cause", err.Message)
	}
	if !errors.Is(err, cause) {
		t.Error("the cause is lost to the log")
	}
}

func TestWithCopies(t *testing.T) {
	a := Errorf(CodeInternal, "x")
	b := a.With("k", "1")
	c := b.With("k", "2")
	if a.Details != nil || b.Details["k"] != "1" || c.Details["k"] != "2" {
		t.Errorf("details are shared: %v %v %v", a.Details, b.Details, c.Details)
	}
}

func TestCodeOfPlainErrors(t *testing.T) {
	if got := CodeOf(errors.New("x")); got != CodeInternal {
		t.Errorf("CodeOf(plain) = %s", got)
	}
	if got := CodeOf(nil); got != "" {
		t.Errorf("CodeOf(nil) = %s", got)
	}
}

func TestInvalidNamesFieldLimitAndRemedy(t *testing.T) {
	err := Invalid("spec.cpus", "1 to 4", "ask for less", "is %d", 5)
	want := map[string]string{DetailScope: "spec.cpus", DetailLimit: "1 to 4", DetailRemedy: "ask for less"}
	if err.Error() != "spec.cpus is 5" || err.Code != CodeInvalidArgument || !maps.Equal(err.Details, want) {
		t.Errorf("%v (%s) %v", err, err.Code, err.Details)
	}
	err = Invalid("scope", "a or b", "", "is c")
	if want := map[string]string{DetailScope: "scope", DetailLimit: "a or b"}; !maps.Equal(err.Details, want) {
		t.Errorf("a remedy that nobody has is told: %v", err.Details)
	}
}

package fleet

import (
	"errors"
	"testing"
)

func TestWhatCannotStandStillIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		spec Spec
		code Code
		is   error
	}{
		"nothing said":            {},
		"paused":                  {spec: Spec{OnIdle: IdlePause}},
		"destroyed on huge pages": {spec: Spec{OnIdle: IdleDestroy, HugePages: true}},
		"unknown":                 {spec: Spec{OnIdle: "sleep"}, code: CodeInvalidArgument},
		"paused on huge pages":    {spec: Spec{OnIdle: IdlePause, HugePages: true}, code: CodeInvalidArgument},
		"paused with a GPU":       {spec: Spec{OnIdle: IdlePause, GPUs: 1}, code: CodeConflict, is: ErrGPUUnsupported},
		"unknown golden":          {spec: Spec{Golden: "always"}, code: CodeInvalidArgument},
	} {
		err := CheckContinuation(tt.spec)
		if CodeOf(err) != tt.code || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%s: %v", name, err)
		}
		var fe *Error
		if errors.As(err, &fe) && fe.Details[DetailRemedy] == "" {
			t.Errorf("%s: no remedy in %v", name, fe.Details)
		}
	}
}

package config

import (
	"strings"
	"testing"
	"time"
)

func TestHostSettings(t *testing.T) {
	s, err := load(t, []string{"--data-dir=/d"}, nil, nil)
	if err != nil || s.Hosts != (Hosts{3, 90 * time.Second, time.Hour}) || s.DeadLetters != (DeadLetters{2160 * time.Hour, 10_000}) {
		t.Errorf("defaults %+v %+v, %v", s.Hosts, s.DeadLetters, err)
	}
	s, err = load(t, []string{"--data-dir=/d", "--host-probe-interval=0", "--dead-letter-retention=0", "--dead-letter-keep=0"},
		map[string]string{"ORCH_HOST_UNREACHABLE_LOOKS": "5", "ORCH_HOST_UNREACHABLE_AFTER": "10m"}, nil)
	if err != nil || s.Hosts != (Hosts{5, 10 * time.Minute, 0}) || s.DeadLetters != (DeadLetters{}) {
		t.Errorf("given %+v %+v, %v", s.Hosts, s.DeadLetters, err)
	}
	for _, arg := range []string{
		"--host-unreachable-looks=0", "--host-unreachable-looks=x", "--host-unreachable-after=0s", "--host-probe-interval=1s",
		"--host-probe-interval=often", "--dead-letter-retention=1m", "--dead-letter-keep=-1", "--dead-letter-keep=2000000",
	} {
		if _, err := load(t, []string{"--data-dir=/d", arg}, nil, nil); err == nil || !strings.Contains(err.Error(), strings.Split(arg, "=")[0]) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

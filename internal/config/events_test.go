package config

import (
	"testing"
	"time"
)

func TestEventSettings(t *testing.T) {
	s, err := load(t, []string{"--data-dir=/d"}, nil, nil)
	if err != nil || s.Events != (Events{Retention: 30 * 24 * time.Hour, Keep: 1_000_000}) {
		t.Errorf("by default %+v (%v)", s.Events, err)
	}
	s, err = load(t, []string{"--data-dir=/d", "--event-retention=0", "--event-keep=0"}, map[string]string{"ORCH_WEBHOOK_ALLOW_PRIVATE": "yes"}, nil)
	if err != nil || s.Events != (Events{WebhookAllowPrivate: true}) {
		t.Errorf("%+v (%v)", s.Events, err)
	}
	for _, arg := range []string{"--event-retention=23h", "--event-retention=-1h", "--event-retention=x", "--event-keep=-1", "--event-keep=1e9"} {
		if _, err := load(t, []string{"--data-dir=/d", arg}, nil, nil); err == nil {
			t.Errorf("%s is taken", arg)
		}
	}
}

package events

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

func TestDocument(t *testing.T) {
	e := fleet.Event{
		Seq: 42, EntityType: "vm", EntityID: "fuse-a", UID: "01U", VMID: "fuse-a", HostID: "h1", Owner: "ann", Type: fleet.EventVMRunning,
		State: fleet.VMStateRunning, URL: "h:1", Reason: &fleet.Reason{Actor: "user:ann", Rule: "requested"}, Payload: json.RawMessage(`{"a":1}`), At: noon,
	}
	const want = `{"id":"42","type":"vm.running","entity_type":"vm","entity_id":"fuse-a","vm_id":"fuse-a","uid":"01U","host_id":"h1","owner":"ann",` +
		`"state":"running","url":"h:1","reason":{"actor":"user:ann","rule":"requested"},"text":"Running","payload":{"a":1},"at":"2026-03-01T12:00:00Z"}`
	if got := string(Document(&e)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(Message(&e)); got != `{"type":"vm.running","timestamp":"2026-03-01T12:00:00Z","data":`+want+`}` {
		t.Errorf("message %s", got)
	}
	// What would break a reader, or fill it, does not go out.
	for _, payload := range []string{`{`, `{"a":"` + strings.Repeat("x", maxPayload) + `"}`} {
		e.Payload = json.RawMessage(payload)
		if got := Document(&e); !json.Valid(got) || len(got) > 1000 || strings.Contains(string(got), "payload") {
			t.Errorf("payload of %d bytes: %d bytes", len(payload), len(got))
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 123456 * time.Nanosecond: "120µs", 41 * time.Millisecond: "41 ms", 1500 * time.Millisecond: "1.5 s",
		61 * time.Second: "1m01s", 2 * time.Hour: "2h00m", 90 * time.Minute: "1h30m",
	} {
		if got := Span(d); got != want {
			t.Errorf("%d: %q, want %q", d, got, want)
		}
	}
}

func TestActors(t *testing.T) {
	for actor, want := range map[string]string{
		"": "somebody unknown", fleet.ActorReconcile: "the reconcile loop", "user:ann": "ann", "user:ci/key_1": "ci/key_1", "robot": "robot",
		"user:": "somebody unknown",
	} {
		if got := Actor(actor); got != want {
			t.Errorf("%q: %q", actor, got)
		}
	}
	for actor, want := range map[string]string{"user:": "Somebody", "user:\u00e9va": "\u00c9va"} {
		e := fleet.Event{Type: fleet.EventReconcilePaused, Reason: &fleet.Reason{Actor: actor}}
		if got := Sentence(&e); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q", actor, got)
		}
	}
}

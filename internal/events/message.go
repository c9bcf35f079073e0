package events

import (
	"encoding/json"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// document is an event as it goes out, on streams, pages and webhooks.
type document struct {
	ID         string          `json:"id"`
	Type       string          `json:"type"`
	EntityType string          `json:"entity_type"`
	EntityID   string          `json:"entity_id"`
	VMID       string          `json:"vm_id,omitempty"`
	UID        string          `json:"uid,omitempty"`
	HostID     string          `json:"host_id,omitempty"`
	Owner      string          `json:"owner,omitempty"`
	State      fleet.VMState   `json:"state,omitempty"`
	URL        string          `json:"url,omitempty"`
	Error      string          `json:"error,omitempty"`
	Reason     *fleet.Reason   `json:"reason,omitempty"`
	Text       string          `json:"text"`
	Payload    json.RawMessage `json:"payload,omitempty"`
	At         time.Time       `json:"at"`
}

// maxPayload bounds the payload of an event that goes out; a larger one is
// left out.
const maxPayload = 16 << 10

// Document renders an event as JSON.
func Document(e *fleet.Event) json.RawMessage {
	d := document{
		ID: fleet.EventID(e.Seq), Type: e.Type, EntityType: e.EntityType, EntityID: e.EntityID, VMID: e.VMID, UID: e.UID,
		HostID: e.HostID, Owner: e.Owner, State: e.State, URL: e.URL, Error: e.Error, Reason: e.Reason, Text: Sentence(e), At: e.At.UTC(),
	}
	if len(e.Payload) <= maxPayload && json.Valid(e.Payload) {
		d.Payload = e.Payload
	}
	return Payload(d)
}

// Message is an event as the body of a webhook's message.
func Message(e *fleet.Event) []byte { return Notice(e.Type, e.At, Document(e)) }

// Notice is the body of a message of that type. Data has to encode.
func Notice(typ string, at time.Time, data any) []byte {
	return Payload(struct {
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      any       `json:"data"`
	}{typ, at.UTC(), data})
}

// Payload encodes what an event or message carries. v has to encode.
func Payload(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("events: " + err.Error()) // plain values of our own
	}
	return raw
}

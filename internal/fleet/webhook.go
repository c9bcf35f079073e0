package fleet

import "time"

// EventFilter selects events; empty fields do not restrict.
type EventFilter struct {
	Types  []string `json:"types,omitempty"`  // names, in which * stands for anything
	Entity string   `json:"entity,omitempty"` // a type, or a type and an id: host, host/h1
	VM     string   `json:"vm,omitempty"`     // an environment id
	Host   string   `json:"host,omitempty"`
	Owner  string   `json:"owner,omitempty"`
}

// Webhook is a subscription whose events are sent to a URL. Filter.Owner is
// set from the principal that made it unless that one may see everything.
type Webhook struct {
	ID          string      `json:"id"`
	Owner       string      `json:"owner"`
	URL         string      `json:"url"`
	Description string      `json:"description,omitempty"`
	Filter      EventFilter `json:"filter,omitzero"`
	// SecretSealed signs; PreviousSealed, the secret before it, signs too until
	// PreviousUntil, so that a receiver can change over without losing any.
	SecretSealed   []byte    `json:"secret_sealed,omitempty"`
	PreviousSealed []byte    `json:"previous_sealed,omitempty"`
	PreviousUntil  time.Time `json:"previous_until,omitzero"`
	// Cursor is the last event that was taken up: sent, given up, or set aside
	// as a pending delivery.
	Cursor uint64 `json:"cursor"`
	// Failures counts tries in a row for which there was no receiver to speak
	// of; FailingSince is since when no message was taken.
	Failures     int       `json:"failures,omitempty"`
	FailingSince time.Time `json:"failing_since,omitzero"`
	// RetryAt is when a receiver that is down is tried next.
	RetryAt time.Time `json:"retry_at,omitzero"`
	// Disabled says why nothing is sent any more; nil while it is.
	Disabled   *Reason   `json:"disabled,omitempty"`
	DisabledAt time.Time `json:"disabled_at,omitzero"`
	CreatedAt  time.Time `json:"created_at"`
	UpdatedAt  time.Time `json:"updated_at"`
}

// ActorWebhooks is the part of the control plane that sends to webhooks.
const ActorWebhooks = "webhooks"

// DeliveryState is where a delivery stands.
type DeliveryState string

// Delivery states.
const (
	DeliveryPending   DeliveryState = "pending"   // to be tried, or tried again
	DeliveryDelivered DeliveryState = "delivered" // the receiver answered 2xx
	DeliveryFailed    DeliveryState = "failed"    // given up
)

// Done reports whether nothing more is tried.
func (s DeliveryState) Done() bool { return s == DeliveryDelivered || s == DeliveryFailed }

// Delivery is one message to one webhook and what became of it. ID is the
// webhook-id header: it is the same in every try, so a receiver can tell a
// repetition.
type Delivery struct {
	ID        string        `json:"id"`
	WebhookID string        `json:"webhook_id"`
	Seq       uint64        `json:"seq,omitempty"` // of the event; zero for a ping
	Type      string        `json:"type"`
	VMID      string        `json:"vm_id,omitempty"` // deliveries of one environment go in order
	Body      []byte        `json:"body"`
	State     DeliveryState `json:"state"`
	Attempts  int           `json:"attempts"`
	NextAt    time.Time     `json:"next_at,omitzero"` // while pending
	// Status, Took, Answer and Error tell the last try; Answer is the
	// beginning of the body.
	Status    int           `json:"status,omitempty"`
	Took      time.Duration `json:"took,omitempty"`
	Answer    string        `json:"answer,omitempty"`
	Error     string        `json:"error,omitempty"`
	CreatedAt time.Time     `json:"created_at"`
	EndedAt   time.Time     `json:"ended_at,omitzero"`
}

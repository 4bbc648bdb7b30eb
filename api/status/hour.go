package status

// Minutes is the most minutes of an [Hour].
const Minutes = 60

// Hour is the last hour that a process ran, in one number for each minute, the newest last.
type Hour struct {
	// Until is the end of the newest minute.
	Until Time `json:"until"`
	// Pending are the events of the whole outbox that waited at the end of each minute, now or for a retry: -1 where they were
	// not counted. Delivered are those that the process delivered in each.
	Pending   []int64 `json:"pending"`
	Delivered []int64 `json:"delivered"`
}

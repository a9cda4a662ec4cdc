// The views that both coats have.

import { addCompareView } from "./compare.js";
import { addConversationView } from "./conversation.js";
import { addRunView } from "./run.js";

export function addLooking() {
  addRunView();
  addConversationView();
  addCompareView();
}
